"""What a network gives: the texts of a T5's decoder, or what stands on an encoder: the head of a masked language model,
perhaps with one for sentence pairs, one with labels, or nothing where it was trained to give vectors."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from limba.files.untrusted_files import shown
from limba.network.encoders import classifier
from limba.network.encoders.config import EncoderConfig
from limba.network.encoders.encoder import MaskedLanguageModel
from limba.network.encoders.sentence_pairs import MaskedLanguageModelWithPairs
from limba.network.encoders.text_encoder import TextEncoder
from limba.network.encoders.token_detector import ReplacedTokenDetector
from limba.network.t5 import T5Config, Transformer

# The endings of Hugging Face's classes.
GENERATION = "ConditionalGeneration"
MASKED_LM, PAIRS = "MaskedLM", "PreTraining"
SEQUENCE, TOKENS = "SequenceClassification", "TokenClassification"
# Vectors have no class of transformers; a detector of replaced tokens has `ElectraForPreTraining`.
VECTORS, DETECTOR = "Vectors", "ReplacedTokenDetection"
_ENDINGS = {DETECTOR: PAIRS}
_OF_DETECTORS = ("ElectraForPreTraining",)
# transformers' names of what the logits of a row are: numbers, or labels of which one or any number is right.
REGRESSION, SINGLE_LABEL, MULTI_LABEL = "regression", "single_label_classification", "multi_label_classification"
_WITHOUT_LABELS = {
    GENERATION: Transformer,
    MASKED_LM: MaskedLanguageModel,
    PAIRS: MaskedLanguageModelWithPairs,
    DETECTOR: ReplacedTokenDetector,
    VECTORS: TextEncoder,
}
# A number of labels that is larger is no such number.
_MOST_LABELS = 2**20
_NETWORKS = {SEQUENCE: classifier.SequenceClassifier, TOKENS: classifier.TokenClassifier}


@dataclasses.dataclass(frozen=True)
class Head:
    """A head, without its numbers.

    Attributes:
      kind: the ending of Hugging Face's class.
      labels: of the logits, or the name of a number; a T5 and a masked language model have none.
      activation, use_norm, dense_bias, drop_inputs, pooling: of a head with labels; see
        `limba.network.encoders.classifier`.
      problem_type: transformers' name of what the logits of a row are; None is what it takes for so many labels.
      pooling, normalize, max_length: of vectors; see `limba.network.encoders.text_encoder`.
    """

    kind: str = MASKED_LM
    labels: tuple[str, ...] = ()
    activation: str | None = None
    use_norm: bool = False
    dense_bias: bool = True
    drop_inputs: bool = False
    pooling: str = "first"
    normalize: bool = False
    max_length: int = 512
    problem_type: str | None = None

    def network(self, config: EncoderConfig | T5Config) -> nn.Module:
        """The encoder with this head, or the T5."""
        if self.kind == VECTORS:
            return TextEncoder(config, **self.fields)
        if self.kind == GENERATION:
            return config.network()  # type: ignore[union-attr]
        if self.kind in _WITHOUT_LABELS:
            return _WITHOUT_LABELS[self.kind](config)  # type: ignore[arg-type]
        return _NETWORKS[self.kind](config, self.labels, **self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """Those of the network that are the head's."""
        if self.kind == VECTORS:
            return {name: getattr(self, name) for name in ("pooling", "normalize", "max_length")}
        names = ("activation", "use_norm", "dense_bias", "drop_inputs", *(["pooling"] if self.kind == SEQUENCE else []))
        return {name: getattr(self, name) for name in names}

    @property
    def record(self) -> dict[str, Any]:
        """What `run.json` says of it; nothing of a T5's and of a masked language model's alone."""
        if self.kind in (GENERATION, MASKED_LM):
            return {}
        if not self.labels:
            return {"head": {"class": self.class_name} | (self.fields if self.kind == VECTORS else {})}
        problem_type = {} if self.problem_type is None else {"problem_type": self.problem_type}
        return {"labels": list(self.labels), "head": {"class": self.class_name} | self.fields | problem_type}

    def settings(self) -> dict[str, Any]:
        """What all families' config.json say of it alike."""
        if self.kind == DETECTOR:
            return {}
        if not self.labels:
            return {"tie_word_embeddings": True}
        return {
            "id2label": {str(i): label for i, label in enumerate(self.labels)},
            "label2id": {label: i for i, label in enumerate(self.labels)},
            **({"problem_type": self.problem} if self.kind == SEQUENCE else {}),
        }

    @property
    def is_number(self) -> bool:
        """Whether the logits of a row are numbers."""
        return self.problem == REGRESSION

    @property
    def has_several_labels(self) -> bool:
        """Whether any number of a row's labels is right."""
        return self.problem == MULTI_LABEL

    @property
    def problem(self) -> str:
        """`problem_type`, or what transformers takes without it."""
        return self.problem_type or (REGRESSION if len(self.labels) == 1 else SINGLE_LABEL)

    @property
    def class_name(self) -> str:
        """Of Limba's network."""
        return (_WITHOUT_LABELS | _NETWORKS)[self.kind].__name__


OF_T5, OF_MASKED_LM, OF_PAIRS, OF_DETECTOR = Head(GENERATION), Head(), Head(PAIRS), Head(DETECTOR)


def ending(kind: str) -> str:
    """That of Hugging Face's classes with a kind of head."""
    return _ENDINGS.get(kind, kind)


def kind_of(network: str) -> str:
    """The kind of head that a network of `limba.network.encoders.classifier` has."""
    return next(kind for kind, found in _NETWORKS.items() if found.__name__ == network)


def of_run(info: Mapping[str, Any], path: Any) -> Head:
    """The head that `run.json` describes.

    Raises:
      ValueError: if it has labels and describes none of Limba's classifiers.
    """
    record = dict(info.get("head") or {})
    found = record.pop("class", None)
    if "labels" not in info and found != TextEncoder.__name__:
        return next((head for head in (OF_PAIRS, OF_DETECTOR) if head.class_name == found), OF_MASKED_LM)
    known_kinds = _NETWORKS | {VECTORS: TextEncoder}
    kind = next((kind for kind, network in known_kinds.items() if network.__name__ == found), None)
    if kind is None:
        known = " or ".join(network.__name__ for network in _NETWORKS.values())
        what = "does not describe its head" if found is None else f"says that it is a {shown(found)}"
        raise ValueError(
            f"{path} is a classifier, and its run/run.json {what}; classifiers that are converted are a {known} of "
            "this version. If it was one of an earlier version, train one more step."
        )
    try:
        return Head(kind, tuple(map(str, info.get("labels", ()))), **record)
    except TypeError as error:
        raise ValueError(f"{path}/run/run.json does not describe a {found} of this version ({error}).") from error


def on_t5(info: Mapping[str, Any], path: Any) -> Head:
    """The head of a T5, or what is on its encoder, which `run.json` describes.

    Raises:
      ValueError: as `of_run`, and if no class of Hugging Face holds it.
    """
    if "labels" not in info:
        head = of_run(info, path)
        return head if head.kind == VECTORS else OF_T5
    head = of_run(info, path)
    if head.kind == TOKENS and head.activation is None:
        return head
    reason = f"its activation is {head.activation!r}, and that of T5ForTokenClassification None"
    if head.kind != TOKENS:
        reason = "it labels the mean of a row, T5ForTokenClassification each token, and others the decoder's output"
    raise ValueError(
        f"{path} is a classifier on the encoder of a T5, and no class of Hugging Face holds it: {reason}. Convert the "
        "T5 that it began with; `limba infer` answers with the classifier."
    )


def of_config(content: Mapping[str, Any]) -> Head:
    """The kind of head and the labels that a config.json says; a masked language model's alone where it says no other.

    Raises:
      ValueError: for labels that are not the texts of 0, 1, 2 …, or several of which can be right.
    """
    classes = content.get("architectures") or []
    name = str(classes[0]) if isinstance(classes, list) and classes else ""
    kind = next((kind for kind in (*_NETWORKS, PAIRS) if name.endswith(f"For{kind}")), MASKED_LM)
    if kind in _WITHOUT_LABELS:
        return OF_DETECTOR if name in _OF_DETECTORS else Head(kind)
    # Where config.json has no labels, transformers gives them these names, and there are two where it has no number.
    count = content.get("num_labels") or content.get("_num_labels")
    count = count if isinstance(count, int) and 0 < count <= _MOST_LABELS else 2
    given = content.get("id2label") or {str(number): f"LABEL_{number}" for number in range(count)}
    labels = [given.get(str(number)) for number in range(len(given))] if isinstance(given, dict) else []
    if not labels or len({*labels}) < len(labels) or not all(isinstance(x, str) and x for x in labels):
        remedy = "Write such labels into config.json; the weights stay as they are."
        wanted = "it has different texts, of 0, 1, 2 …, none of them empty"
        raise ValueError(f"id2label is {shown(given)}; {wanted}. {remedy}")
    return _with_problem(Head(kind, tuple(map(str, labels))), content)


def _with_problem(head: Head, content: Mapping[str, Any]) -> Head:
    """The head with the `problem_type` of a config.json.

    Raises:
      ValueError: for one that transformers does not have, or that does not fit the labels.
    """
    if head.kind == TOKENS:
        if len(head.labels) < 2:
            given = shown(content.get("id2label"))
            raise ValueError(f"id2label is {given}; Limba's classifiers of tokens have at least two labels")
        return head
    problem = content.get("problem_type")
    if problem in (None, head.problem):
        return head
    if problem == SINGLE_LABEL:
        raise ValueError(f"problem_type is {problem!r}, and there is one label; give two, or write {REGRESSION!r}")
    if problem not in (REGRESSION, MULTI_LABEL):
        known = f"{REGRESSION}, {SINGLE_LABEL} or {MULTI_LABEL}"
        raise ValueError(f"problem_type is {shown(problem)}; transformers has {known}")
    return dataclasses.replace(head, problem_type=problem)
