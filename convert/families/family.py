"""What a conversion needs to know of a family of T5s."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from convert.families import t5_keys
from convert.families.config_keys import Table
from limba.checkpoint_files import run_folder
from limba.network.t5 import T5Config


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of T5: what its Hugging Face folders have in common. Its network is `limba.network.t5`'s.

    A new family is one such object and one row: in `convert.families.table` or, from a package of your own, an entry
    point of the group `limba.families`. `--family NAME` then converts checkpoints to it, and folders whose config.json
    has its `model_type` are read as it. Start from a family that exists, with `dataclasses.replace`.

    Attributes:
      name: of `--family`.
      title: in model cards.
      model_type: of config.json. The first family of the table that has it says how a config.json is read.
      model_class: that generates; `architectures` of config.json.
      network: fields of `T5Config` that every model of the family has.
      in_bytes: whether the vocabulary is bytes; None if either will do.
      recognized_by: a clause for messages, "its vocabulary is bytes".
      defaults: what transformers takes for `feed_forward_proj` and `tie_word_embeddings` where config.json has none.
      in_transformers: whether transformers has the class; conversions are then compared with it where it is installed.
      hides_output: whether version 5 of transformers writes `tie_word_embeddings: true` for untied models as well.
      scales_untied: whether version 5 of transformers divides the logits of untied models by sqrt(d_model) as well.
      config_keys: keys of config.json that have other names, by T5's: `{"d_model": "hidden_size"}`.
      activations: further values of `feed_forward_proj`, with the `mlp_activations` that they mean.
      modules: modules that have other names, or parts of the names, by T5's: `{"lm_head": "output"}`.
      generation: keys of generation_config.json, beside the special ids.
      keys: what happens to each key of config.json, by T5's names; for further ones,
        `t5_keys.KEYS | config_keys.table(…)`.
    """

    name: str
    title: str
    model_type: str
    model_class: str
    network: Mapping[str, Any]
    recognized_by: str
    in_bytes: bool | None = False
    defaults: Mapping[str, Any] = dataclasses.field(
        default_factory=lambda: {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": True}
    )
    in_transformers: bool = False
    hides_output: bool = False
    scales_untied: bool = False
    config_keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    activations: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
    generation: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    keys: Table = dataclasses.field(default_factory=lambda: t5_keys.KEYS)

    @property
    def classifier_class(self) -> str:
        """The class of an encoder of the family with labels of tokens."""
        return self.model_class.replace("ForConditionalGeneration", "ForTokenClassification")

    def fits(self, network: T5Config, vocabulary: Mapping[str, Any] | None) -> bool:
        """Whether a network with this vocabulary, as `run.json` records it, can be of the family."""
        return self.in_bytes in (None, run_folder.is_bytes(vocabulary)) and all(
            getattr(network, field) == value for field, value in self.network.items()
        )

    def own_keys(self) -> Table:
        """`keys`, by the family's names."""
        return {self.config_keys.get(name, name): key for name, key in self.keys.items()}

    def tensor_name(self, name: str) -> str:
        """The family's name of a tensor of T5's, PyTorch's (`lm_head.weight`) or Flax's (`lm_head/kernel`)."""
        separator = "/" if "/" in name else "."
        for part, own in self.modules.items():
            name = name.replace(part.replace(".", separator), own.replace(".", separator))
        return name
