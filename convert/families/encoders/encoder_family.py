"""What a conversion needs to know of a family of encoders."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.families import heads
from limba.convert.families.family import Family
from limba.convert.families.heads import Head
from limba.convert.tensors import table
from limba.convert.tensors.table import Row, Shape, Tensor
from limba.files.untrusted_files import shown
from limba.network.encoders.config import EncoderConfig

# Hugging Face's names of activations. Its "gelu" is exact; Flax's, which is ours, is the approximation by tanh.
ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


# Parameters with a row, or a column, for each token.
OF_TOKENS = ("token_embedder/embedding", "mlm_head/bias", "mlm_head/logits/kernel")


@dataclasses.dataclass(frozen=True)
class HeadClass:
    """How a family holds one kind of head.

    Attributes:
      rows: of the head's modules.
      required: gives the fields that the class has for a network, with their values: those of `Head` for a head with
        labels, those of `EncoderConfig` for the others.
      settings: gives the keys of config.json that are the head's alone.
      fields: gives the fields of `Head` for a config.json of a network.
    """

    rows: tuple[Row, ...]
    required: Callable[[EncoderConfig], Mapping[str, tuple[Any, ...]]]
    settings: Callable[[EncoderConfig, Head], dict[str, Any]] = lambda config, head: {}
    fields: Callable[[Mapping[str, Any], EncoderConfig], dict[str, Any]] = lambda content, config: {}

    def problems(self, config: EncoderConfig, head: Head) -> Iterator[str]:
        """Why the class does not hold a head on a network, in clauses."""
        owner: Any = head if head.labels else config
        for field, values in self.required(config).items():
            if (found := getattr(owner, field)) not in values:
                yield f"{field} is {found!r}, and must be {' or '.join(map(repr, values))}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFamily(Family):
    """A kind of encoder, with a class for each kind of head. Its network is `limba.network.encoders`'; see `Family`.

    Attributes:
      prefix: of the names of its tensors that are not the head's.
      required: fields of `EncoderConfig` and the values that the classes have.
      rows: of modules; the first that names a module of Limba's counts.
      heads: by kind.
      output: the module whose weight is the embedding, in the class of masked language models.
      settings: gives the content of config.json for a network, without what all families have.
      fields: gives the fields of `EncoderConfig` for a config.json; raises ValueError for what Limba does not have.
      limits: gives in clauses what is wrong with a network beside `required`.
      constants: gives the tensors of the class that Limba's network has no parameter for.
      default_pad_id: `pad_token_id` where config.json has none.
      fixed_pad_id: the padding that the class assumes whatever config.json says.
      first_position: the row of its table that the first token takes; it gets the id of padding in the folder.
      has_embedding_size: whether its tables may have another width than its layers.
      rotary_pairs: which numbers its rotary positions turn together.
      special_ids: the keys of config.json for special tokens beside padding, with their roles.
      buffers: a pattern of names in files, of tensors that are no parameters.
      newer_names: gives the tensors of a file by the class's names, where older programs have others.
      ignored: a pattern of names of tensors that a network may do without.
      is_new: whether transformers has its classes since version 5.
      numpy_forward: the module with `logits` and `hidden_states`, for checks; see `convert.compare.numpy_encoders`.
    """

    prefix: str
    required: Mapping[str, tuple[Any, ...]]
    rows: tuple[Row, ...]
    heads: Mapping[str, HeadClass]
    output: str
    settings: Callable[[EncoderConfig, int], dict[str, Any]]
    fields: Callable[[Mapping[str, Any], int], dict[str, Any]]
    limits: Callable[[EncoderConfig], Iterator[str]] = lambda config: iter(())
    constants: Callable[[EncoderConfig, int], dict[str, np.ndarray]] = lambda config, pad_id: {}
    default_pad_id: int = 0
    fixed_pad_id: int | None = None
    first_position: Callable[[int], int] = lambda pad_id: 0
    has_embedding_size: bool = False
    rotary_pairs: str = "halves"
    special_ids: Mapping[str, str] = dataclasses.field(default_factory=dict)
    buffers: str = r"(^|\.)embeddings\.(position_ids|token_type_ids)$"
    newer_names: Callable[[Mapping[str, SavedTensor]], Mapping[str, SavedTensor]] = lambda tensors: tensors
    ignored: str = "$^"
    is_new: bool = False
    numpy_forward: str = "limba.convert.compare.numpy_encoders"
    usual_head = Head()
    has_decoder = False

    def held(self, head: Head) -> Head:
        """The head, or the masked language model's alone where no class of the family has one for sentence pairs."""
        return heads.OF_MASKED_LM if head.kind == heads.PAIRS and heads.PAIRS not in self.heads else head

    def head_class(self, kind: str) -> HeadClass:
        """How the family holds a kind of head; vectors have none."""
        return HeadClass((), lambda config: {}) if kind == heads.VECTORS else self.heads[kind]

    def shared_modules(self, kind: str) -> dict[str, str]:
        """The modules of a head with labels that are the masked language model's in Hugging Face's classes, and the
        names that these have in Limba's."""
        of_masked_lm = {row.theirs: row.limba for row in self.heads[heads.MASKED_LM].rows}
        return {row.limba: of_masked_lm[row.theirs] for row in self.heads[kind].rows if row.theirs in of_masked_lm}

    def problems(self, config: EncoderConfig, head: Head) -> list[str]:
        """Why no class holds a network with its head, in clauses; empty if one does."""
        found = []
        for field, values in self.required.items():
            value = getattr(config, field)
            value = tuple(value) if isinstance(value, list) else value
            if value not in values:
                found.append(f"{field} is {value!r}, and must be {' or '.join(map(repr, values))}")
        if config.token_dim != config.emb_dim and not self.has_embedding_size:
            found.append(f"embedding_size is {config.embedding_size}, and must be emb_dim, {config.emb_dim}")
        head = self.held(head)
        if head.kind == heads.DETECTOR and heads.DETECTOR not in self.heads:
            return [*found, "it detects replaced tokens, for which ElectraForPreTraining alone is there"]
        return [*found, *self.limits(config), *self.head_class(head.kind).problems(config, head)]

    def stored_pad_id(self, network: EncoderConfig) -> int:
        return network.pad_id if self.fixed_pad_id is None else self.fixed_pad_id

    def table(self, network: EncoderConfig, head: Head, pad_id: int = 0) -> list[Tensor]:
        """See `Family`; ids are exchanged if `pad_id` is another one than the network's."""
        return table.table(
            self.shapes(network, head),
            (*self.rows, *self.head_class(head.kind).rows),
            chosen_rows=functools.partial(self._chosen_rows, network, pad_id),
            constants=self.constants(network, pad_id),
        )

    def _chosen_rows(self, config: EncoderConfig, pad_id: int, name: str, shape: Shape) -> np.ndarray | None:
        if name in OF_TOKENS and pad_id != config.pad_id:
            return table.exchanged(config.vocab_size, config.pad_id, pad_id)
        if name == "encoder/position_embedder/embedding" and (first := self.first_position(pad_id)):
            return np.concatenate([np.full(first, -1), np.arange(shape[0])])
        if (
            config.position_embedding_type == "rotary"
            and config.rotary_pairs != self.rotary_pairs
            and re.search(r"/(query|key)/", name)
        ):
            return _other_pairs(config)
        return None


def _other_pairs(config: EncoderConfig) -> np.ndarray:
    """Outputs of query or key in the order that the other value of `rotary_pairs` has."""
    pairs = config.head_dim // 2
    inner = (2, pairs) if config.rotary_pairs == "halves" else (pairs, 2)
    size = config.num_heads * math.prod(inner)
    return np.arange(size).reshape(config.num_heads, *inner).swapaxes(1, 2).reshape(size)


def known_activations() -> tuple[str, ...]:
    """Limba's names of the activations that Hugging Face has."""
    return tuple(dict.fromkeys(ACTIVATIONS.values()))


def activation_name(activation: str) -> str:
    """Hugging Face's name of an activation of Limba's."""
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == activation)


def common_limits(config: EncoderConfig) -> Iterator[str]:
    """What all classes want alike, in clauses."""
    if config.sparse_attention is not None:
        yield (
            "sparse_attention is set, and must be None; the one class with blocks, BigBirdForMaskedLM, has others: "
            "global ones at both ends of a row, and random ones by layer, in training alone"
        )
    if config.num_heads * config.head_dim != config.emb_dim:
        yield f"num_heads * head_dim is {config.num_heads * config.head_dim}, and must be emb_dim, {config.emb_dim}"
    if (activation := config.mlp_activations[0]) not in ACTIVATIONS.values():
        yield f"the activation {activation!r} has no name in Hugging Face, which has {', '.join(known_activations())}"
    if config.rotary_dim not in (None, config.head_dim):
        yield f"rotary_dim is {config.rotary_dim}, and must be head_dim, {config.head_dim}"


def value(content: Mapping[str, Any], key: str, default: Any, kinds: type | tuple[type, ...]) -> Any:
    """A value of config.json, where null counts as missing.

    Raises:
      ValueError: if it is of another type.
    """
    found = default if content.get(key) is None else content[key]
    if not isinstance(found, kinds) or (isinstance(found, bool) and kinds is not bool):
        raise ValueError(f"{key} is {shown(found)}, which is not of the type that it must have")
    if isinstance(found, int) and abs(found) >= 2**31:
        raise ValueError(f"{key} is {shown(found)}, and no network has a number of 2**31 or more")
    return found


# Keys of config.json that all families have under these names.
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "emb_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_dim",
}
# A family's own keys: the field of each, and what transformers takes where config.json has none.
Rates = Mapping[str, tuple[str, Any]]


def numbers(config: EncoderConfig, rates: Rates) -> dict[str, Any]:
    """What config.json says of sizes and of these."""
    fields = _SIZES | {key: field for key, (field, _) in rates.items()}
    return {key: getattr(config, field) for key, field in fields.items()}


def read_numbers(content: Mapping[str, Any], rates: Rates) -> dict[str, Any]:
    """The fields for sizes and these.

    Raises:
      ValueError: if one is missing or of another type, or heads do not divide the width.
    """
    found = {field: value(content, key, None, int) for key, field in _SIZES.items()}
    found |= {field: value(content, key, default, (int, float)) for key, (field, default) in rates.items()}
    width, heads_of_layer = found["emb_dim"], found["num_heads"]
    if heads_of_layer < 1 or width % heads_of_layer:
        raise ValueError(f"hidden_size is {width}, which is not a multiple of num_attention_heads, {heads_of_layer}")
    return found | {"head_dim": width // heads_of_layer}


def activation(content: Mapping[str, Any], key: str) -> str:
    """Limba's name of an activation of config.json. Raises ValueError for one that Limba does not have."""
    name = value(content, key, "gelu", str)
    if name not in ACTIVATIONS:
        raise ValueError(f"{key} is {shown(name)}; Limba's encoders have {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def refuse_unless(content: Mapping[str, Any], expected: Mapping[str, Sequence[Any]]) -> None:
    """Raises ValueError if config.json has another value than Limba's network can have."""
    for key, values in expected.items():
        found = content.get(key)
        if found is not None and found not in values:
            raise ValueError(f"{key} is {shown(found)}; Limba's encoders have {' or '.join(map(repr, values))}")
