"""What a conversion needs to know of a family of T5s, and which of their modules hold which of Limba's."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from limba.checkpoint_files import run_folder
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.families import heads
from limba.convert.families.config_keys import t5_keys
from limba.convert.families.config_keys.keys import Table
from limba.convert.families.family import Family
from limba.convert.families.heads import Head
from limba.convert.tensors import table
from limba.convert.tensors.table import Row, Shape, Tensor
from limba.network.t5 import T5Config


def _rows() -> Iterator[Row]:
    yield Row("token_embedder", "shared")
    yield Row("decoder/logits_dense", "lm_head")
    for stack, last in (("encoder", 1), ("decoder", 2)):
        own, layer = f"{stack}/layers_{{i}}", f"{stack}.block.{{i}}.layer"
        biases = "SelfAttention.relative_attention_bias"
        # One table a stack, or in umT5 one a layer.
        yield Row(f"{stack}/relpos_bias", f"{stack}.block.0.layer.0.{biases}")
        yield Row(f"{own}/relpos_bias", f"{layer}.0.{biases}")
        yield Row(f"{stack}/{stack}_norm", f"{stack}.final_layer_norm")
        attention = "attention" if stack == "encoder" else "self_attention"
        yield from _rows_of_attention(own, attention, f"{layer}.0", "SelfAttention")
        if stack == "decoder":
            yield from _rows_of_attention(own, "encoder_decoder_attention", f"{layer}.1", "EncDecAttention")
        yield Row(f"{own}/pre_mlp_layer_norm", f"{layer}.{last}.layer_norm")
        for name in ("wi", "wi_0", "wi_1", "wo"):
            yield Row(f"{own}/mlp/{name}", f"{layer}.{last}.DenseReluDense.{name}")


def _rows_of_attention(own: str, name: str, layer: str, theirs: str) -> Iterator[Row]:
    norm = {"encoder_decoder_attention": "pre_cross_attention"}.get(name, f"pre_{name}")
    yield Row(f"{own}/{norm}_layer_norm", f"{layer}.layer_norm")
    for kernel in ("query", "key", "value", "out"):
        yield Row(f"{own}/{name}/{kernel}", f"{layer}.{theirs}.{kernel[0]}")


ROWS = tuple(_rows())
# In the class of a classifier of tokens the T5 is a module.
TRANSFORMER = "transformer"
_ROWS_OF_CLASSIFIER = (
    *(Row(row.limba, f"{TRANSFORMER}.{row.theirs}") for row in ROWS),
    Row("classifier_head/logits", "classifier"),
)


# The dim of parameters that has a row for each id.
_OF_VOCABULARY = {"token_embedder/embedding": 0, "logits_dense/kernel": -1, "logits_dense/bias": 0}


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Family(Family):
    """A kind of T5. Its network is `limba.network.t5`'s; see `Family`.

    `--family NAME` converts checkpoints to it, and folders whose config.json has its `model_type` are read as it.

    Attributes:
      network: fields of `T5Config` that every model of the family has.
      in_bytes: whether the vocabulary is bytes; None if either will do.
      recognized_by: a clause for messages, "its vocabulary is bytes".
      defaults: see `Family`; with `feed_forward_proj` and `tie_word_embeddings`.
      in_transformers: whether transformers has the class; conversions are then compared with it where it is installed.
      hides_output: whether version 5 of transformers writes `tie_word_embeddings: true` for untied models as well.
      scales_untied: whether version 5 of transformers divides the logits of untied models by sqrt(d_model) as well.
      config_keys: keys of config.json that have other names, by T5's: `{"d_model": "hidden_size"}`.
      activations: further values of `feed_forward_proj`, with the `mlp_activations` that they mean.
      modules: modules that have other names, or parts of the names, by T5's: `{"lm_head": "output"}`.
      generation: keys of generation_config.json, beside the special ids.
      keys: by T5's names; for further ones, `t5_keys.KEYS | config_keys.table(…)`.
      prefix: with which all names of tensors begin, but for an untied output's; readers take it for a wrapper's.
      rows: which modules hold which of Limba's.
      embeddings: PyTorch's names of the embedding, the first one its own; files may have one of them or all.
      output: PyTorch's name of the output, and the embedding that it is in tied models.
      in_flax: whether transformers 4 has a Flax class.
      is_new: whether transformers has its class since version 5.
      left_out: how the names of tensors begin that Limba's network has no place for; an export has `constants`.
      left_out_because: a clause for messages.
      layer_kind: whose layers its networks have; see `T5Config.layer_kind`.
      config_class: of its networks.
      numpy_forward: the module with `logits(weights, content, inputs, decoder_inputs, rounding)`, for checks.
      torch_attention: the implementation of attention that its class needs in PyTorch; None is transformers' choice.
      usual_ids: the special ids of a folder whose files do not say them.
      code: a sentence on where the class is, if transformers does not have it.
    """

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
    prefix: str = ""
    rows: tuple[Row, ...] = ROWS
    embeddings: tuple[str, ...] = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    output: tuple[str, str] = ("lm_head.weight", "shared.weight")
    in_flax: bool = True
    is_new: bool = False
    left_out: tuple[str, ...] = ()
    left_out_because: str = ""
    layer_kind: ClassVar[str] = "t5"
    config_class: ClassVar[type[T5Config]] = T5Config
    numpy_forward: ClassVar[str] = "limba.convert.compare.numpy_t5"
    torch_attention: ClassVar[str | None] = None
    usual_ids: ClassVar[Mapping[str, int]] = {"pad_token_id": 0, "eos_token_id": 1}
    code: ClassVar[str] = ""
    usual_head = heads.OF_T5
    has_decoder = True

    def change_class(self, model: Any) -> None:
        """Takes out of the class in PyTorch, without weights yet, what Limba does not read."""

    def name_in_files(self, name: str) -> str:
        """That of a parameter of the class, after `change_class`."""
        return name

    def table(self, network: T5Config, head: Head, pad_id: int = 0) -> list[Tensor]:
        """Every tensor by T5's names of them; see `tensor_name`. Limba's padding is 0: two ids may be exchanged."""

        def chosen_rows(name: str, shape: Shape) -> np.ndarray | None:
            axis = _OF_VOCABULARY.get(name.removeprefix("decoder/"))
            return table.exchanged(shape[axis], 0, pad_id) if pad_id and axis is not None else None

        rows = _ROWS_OF_CLASSIFIER if head.labels else self.rows
        constants = {} if head.labels else self.constants(network)
        return table.table(self.shapes(network, head), rows, chosen_rows=chosen_rows, constants=constants)

    def constants(self, network: T5Config) -> dict[str, np.ndarray]:
        """Tensors of its class that the network has no parameters for, by name."""
        return {}

    def check_left_out(self, path: Path, tensors: Mapping[str, SavedTensor]) -> None:
        """Raises ValueError if one of a folder's tensors that are `left_out` says what no network of Limba computes."""

    def fits(self, network: T5Config, vocabulary: Mapping[str, Any] | None) -> bool:
        """Whether a network with this vocabulary, as `run.json` records it, can be of the family."""
        if not self.has_layers_of(network):
            return False
        return self.in_bytes in (None, run_folder.is_bytes(vocabulary)) and all(
            getattr(network, field) == value for field, value in self.network.items()
        )

    def has_layers_of(self, network: T5Config) -> bool:
        """Whether the layers of a network are the family's."""
        return network.layer_kind == self.layer_kind

    def problem(self, network: T5Config) -> str:
        """Why its class does not hold a network that `fits`, a clause; "" if it does."""
        return ""

    def make_network(self, content: Mapping[str, Any], **fields: Any) -> T5Config:
        """The network with these fields, and those of its own that a config.json with T5's keys has."""
        return T5Config(**fields)

    def layer_keys(self, network: T5Config) -> dict[str, Any]:
        """Keys beside T5's that `make_network` reads."""
        return {}

    def usual_start(self, content: Mapping[str, Any]) -> int | None:
        """What the decoder of a config.json begins with where no file says another id; None for padding."""
        return None

    def fields_of_t5x(self, parameters: Callable[[str], Mapping[str, Any]]) -> dict[str, Any]:
        """Fields of `config_class` that are not T5's, in one of T5X's gin files.

        Args:
          parameters: gives those that it binds of a class or function, by name.
        """
        return {}

    def fields_of_names(self, names: Collection[str]) -> dict[str, Any]:
        """The same fields as the names of a T5X checkpoint's parameters show them, where no gin file says them."""
        return {}

    def own_keys(self) -> Table:
        """`keys`, by the family's names."""
        return {self.config_keys.get(name, name): key for name, key in self.keys.items()}

    def key_tables(self, content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Table]]:
        """The parts of a config.json: where each is, for messages (": encoder"), its keys, and what happens to them."""
        yield "", content, self.own_keys()

    def with_t5_keys(self, file: Path, content: Mapping[str, Any], ignored: Collection[str] = ()) -> dict[str, Any]:
        """A config.json with T5's keys, without the ignored ones. Raises ValueError for what no network of Limba is."""
        t5_keys_by_own = {own: key for key, own in self.config_keys.items()}
        return {t5_keys_by_own.get(key, key): value for key, value in content.items() if key not in ignored}

    def with_own_keys(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The family's config.json of one with T5's keys."""
        return {self.config_keys.get(key, key): value for key, value in content.items()}

    def tensor_name(self, name: str) -> str:
        """The family's name of a tensor of T5's, PyTorch's (`lm_head.weight`) or Flax's (`lm_head/kernel`)."""
        separator = "/" if "/" in name else "."
        for part, own in self.modules.items():
            name = name.replace(part.replace(".", separator), own.replace(".", separator))
        return name
