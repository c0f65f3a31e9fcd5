"""What a conversion needs to know of a family of models of Hugging Face."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from limba.convert.families import heads, networks
from limba.convert.families.config_keys.keys import Table
from limba.convert.families.heads import Head
from limba.convert.families.networks import Network
from limba.convert.tensors.table import Shape, Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family(abc.ABC):
    """A kind of model: what its Hugging Face folders have in common.

    A new family is one such object in a file of this room and one row: in `convert.families.table` or, from a package
    of your own, an entry point of the group `limba.families`. Start from one that exists, with `dataclasses.replace`.
    T5s are of the class `T5Family`, encoders alone of `EncoderFamily`.

    Attributes:
      name: in messages and reports, and of `--family`.
      title: in model cards.
      model_type: of config.json. The first family of the table that has it says how a config.json is read.
      model_class: Hugging Face's, of the models that are pre-trained: `architectures` of config.json.
      defaults: the sizes, and what else the readers of config.json do not know, that its class in transformers takes
        for keys that config.json leaves out. Without them the keys are asked for.
      keys: what happens to each key of config.json.
      usual_head: that of `model_class`.
      has_decoder: whether it is a T5; else an encoder alone.
      is_typeless: whether its files have no `model_type`, as those of classes outside of transformers; `model_class`
        tells them.
    """

    name: str
    title: str
    model_type: str
    model_class: str
    keys: Table
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    usual_head: ClassVar[Head]
    is_typeless: ClassVar[bool] = False
    has_decoder: ClassVar[bool]

    def class_of(self, kind: str) -> str:
        """The class of a kind of head."""
        return self.model_class.replace(f"For{self.usual_head.kind}", f"For{heads.ending(kind)}")

    def completed(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """A config.json with `defaults` for what it leaves out."""
        return {**self.defaults, **content}

    @abc.abstractmethod
    def table(self, network: Any, head: Head, pad_id: int = 0) -> list[Tensor]:
        """Every tensor of a folder with the padding `pad_id`."""

    def shapes(self, network: Network, head: Head) -> Mapping[str, Shape]:
        """The shapes of a network's parameters, by Limba's names."""
        return networks.shapes(network, head)

    def tensor_name(self, name: str) -> str:
        """The family's name of a tensor of `table`."""
        return name

    def stored_pad_id(self, network: Any) -> int:
        """The id of padding in an export of a network."""
        return 0
