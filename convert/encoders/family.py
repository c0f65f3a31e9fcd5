"""What a conversion needs to know of a class of Hugging Face that is an encoder."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

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
class Family:
    """One class of Hugging Face.

    Attributes:
      name: in messages and reports.
      title: in model cards.
      model_type: of config.json.
      model_class: `architectures` of config.json.
      prefix: of the names of its tensors that are not the head's.
      required: fields of `EncoderConfig` and the values that the class has.
      rows: of modules; the first that names a module of Limba's counts.
      settings: gives the content of config.json for a network, without what all families have.
      fields: gives the fields of `EncoderConfig` for a config.json; raises ValueError for what Limba does not have.
      limits: gives in clauses what is wrong with a network beside `required`.
      constants: gives the tensors of the class that Limba's network has no parameter for.
      default_pad_id: `pad_token_id` where config.json has none.
      fixed_pad_id: the padding that the class assumes whatever config.json says.
      first_position: the row of its table that the first token takes; it gets the id of padding in the folder.
      rotary_pairs: which numbers its rotary positions turn together.
      special_ids: the keys of config.json for special tokens beside padding, with their roles.
      ignored: a pattern of names of tensors that the masked language model does without.
    """

    name: str
    title: str
    model_type: str
    model_class: str
    prefix: str
    required: Mapping[str, tuple[Any, ...]]
    rows: tuple[Row, ...]
    settings: Callable[[EncoderConfig, int], dict[str, Any]]
    fields: Callable[[Mapping[str, Any], int], dict[str, Any]]
    limits: Callable[[EncoderConfig], Iterator[str]] = lambda config: iter(())
    constants: Callable[[EncoderConfig, int], dict[str, np.ndarray]] = lambda config, pad_id: {}
    default_pad_id: int = 0
    fixed_pad_id: int | None = None
    first_position: Callable[[int], int] = lambda pad_id: 0
    rotary_pairs: str = "halves"
    special_ids: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: str = "$^"

    def problems(self, config: EncoderConfig) -> list[str]:
        """Why the class does not hold a network, in clauses; empty if it does."""
        found = []
        for field, values in self.required.items():
            value = getattr(config, field)
            value = tuple(value) if isinstance(value, list) else value
            if value not in values:
                found.append(f"{field} is {value!r}, and must be {' or '.join(map(repr, values))}")
        return found + list(self.limits(config))

    def stored_pad_id(self, config: EncoderConfig) -> int:
        """The id of padding in an export of a network."""
        return config.pad_id if self.fixed_pad_id is None else self.fixed_pad_id


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
    for activation in (*config.mlp_activations[:1], *filter(None, [config.head_activation])):
        if activation not in ACTIVATIONS.values():
            known = ", ".join(dict.fromkeys(ACTIVATIONS.values()))
            yield f"the activation {activation!r} has no name in Hugging Face, which has {known}"


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
