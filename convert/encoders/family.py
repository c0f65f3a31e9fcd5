"""What a conversion needs to know of a class of Hugging Face that is an encoder."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from convert.families import heads
from convert.families.config_keys import Table
from convert.families.heads import Head
from limba.encoders.config import EncoderConfig
from limba.machine.untrusted_files import shown

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


@dataclasses.dataclass(frozen=True)
class Row:
    """A module of Limba's and the one of Hugging Face that holds its parameters; `{i}` is the number of the layer.

    Several of Limba's with one of Hugging Face's lie in it one after the other, in the order of the rows.
    """

    limba: str
    theirs: str


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


@dataclasses.dataclass(frozen=True)
class Family:
    """An encoder of Hugging Face and its classes, one for each kind of head.

    Attributes:
      name: in messages and reports.
      title: in model cards.
      model_type: of config.json.
      stem: what its classes begin with: "Bert".
      prefix: of the names of its tensors that are not the head's.
      required: fields of `EncoderConfig` and the values that the classes have.
      keys: what happens to each key of config.json.
      rows: of modules; the first that names a module of Limba's counts.
      heads: by kind.
      settings: gives the content of config.json for a network, without what all families have.
      fields: gives the fields of `EncoderConfig` for a config.json; raises ValueError for what Limba does not have.
      limits: gives in clauses what is wrong with a network beside `required`.
      constants: gives the tensors of the class that Limba's network has no parameter for.
      default_pad_id: `pad_token_id` where config.json has none.
      fixed_pad_id: the padding that the class assumes whatever config.json says.
      first_position: the row of its table that the first token takes; it gets the id of padding in the folder.
      rotary_pairs: which numbers its rotary positions turn together.
      special_ids: the keys of config.json for special tokens beside padding, with their roles.
      buffers: a pattern of names in files, of tensors that are no parameters.
      ignored: a pattern of names of tensors that a network may do without.
    """

    name: str
    title: str
    model_type: str
    stem: str
    prefix: str
    required: Mapping[str, tuple[Any, ...]]
    keys: Table
    rows: tuple[Row, ...]
    heads: Mapping[str, HeadClass]
    settings: Callable[[EncoderConfig, int], dict[str, Any]]
    fields: Callable[[Mapping[str, Any], int], dict[str, Any]]
    limits: Callable[[EncoderConfig], Iterator[str]] = lambda config: iter(())
    constants: Callable[[EncoderConfig, int], dict[str, np.ndarray]] = lambda config, pad_id: {}
    default_pad_id: int = 0
    fixed_pad_id: int | None = None
    first_position: Callable[[int], int] = lambda pad_id: 0
    rotary_pairs: str = "halves"
    special_ids: Mapping[str, str] = dataclasses.field(default_factory=dict)
    buffers: str = r"(^|\.)embeddings\.(position_ids|token_type_ids)$"
    ignored: str = "$^"

    @property
    def model_class(self) -> str:
        """The class of masked language models."""
        return self.class_of(heads.MASKED_LM)

    def held(self, head: Head) -> Head:
        """The head, or the masked language model's alone where no class of the family has one for sentence pairs."""
        return heads.OF_MASKED_LM if head.kind == heads.PAIRS and heads.PAIRS not in self.heads else head

    def class_of(self, kind: str) -> str:
        """The class of a kind of head: `architectures` of config.json."""
        return f"{self.stem}For{kind}"

    def problems(self, config: EncoderConfig, head: Head) -> list[str]:
        """Why no class holds a network with its head, in clauses; empty if one does."""
        found = []
        for field, values in self.required.items():
            value = getattr(config, field)
            value = tuple(value) if isinstance(value, list) else value
            if value not in values:
                found.append(f"{field} is {value!r}, and must be {' or '.join(map(repr, values))}")
        head = self.held(head)
        return [*found, *self.limits(config), *self.heads[head.kind].problems(config, head)]

    def stored_pad_id(self, config: EncoderConfig) -> int:
        """The id of padding in an export of a network."""
        return config.pad_id if self.fixed_pad_id is None else self.fixed_pad_id


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


def value(content: Mapping[str, Any], key: str, default: Any, kinds: type | tuple[type, ...]) -> Any:
    """A value of config.json, where null counts as missing.

    Raises:
      ValueError: if it is of another type.
    """
    found = default if content.get(key) is None else content[key]
    if not isinstance(found, kinds) or (isinstance(found, bool) and kinds is not bool):
        raise ValueError(f"{key} is {shown(found)}, which is not of the type that it must have")
    return found


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
