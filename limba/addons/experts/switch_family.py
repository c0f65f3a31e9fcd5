"""Switch Transformers' family: `SwitchTransformersForConditionalGeneration`, whose experts are modules of their own."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from limba.addons.experts import routing, switch_keys
from limba.addons.experts.switch import SwitchConfig
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.families.heads import Head
from limba.convert.families.t5_family import ROWS, T5Family
from limba.convert.tensors.table import Row, Tensor
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_0, AT_LEAST_1, SHARE, Range
from limba.files.untrusted_files import shown
from limba.network.t5 import T5Config

# Fields of `SwitchConfig`, and their keys.
_FIELDS = {
    "num_experts": "num_experts",
    "encoder_sparse_step": "encoder_sparse_step",
    "decoder_sparse_step": "decoder_sparse_step",
    "expert_capacity": "expert_capacity",
    "router_bias": "router_bias",
    "jitter_noise": "router_jitter_noise",
    "router_aux_loss_coef": "router_aux_loss_coef",
    "router_z_loss_coef": "router_z_loss_coef",
}
_LIMITS = {
    "num_experts": AT_LEAST_1,
    "encoder_sparse_step": AT_LEAST_0,
    "decoder_sparse_step": AT_LEAST_0,
    "expert_capacity": AT_LEAST_1,
    "router_jitter_noise": SHARE,
    "router_aux_loss_coef": Range(),
    "router_z_loss_coef": Range(),
}
# Of further fields, what the class has.
_OF_THE_CLASS = {
    "num_selected_experts": 1,
    "encoder_routing": routing.TOKENS_CHOOSE,
    "group_size": None,
    "extra_mlp": False,
}
# What the class takes for keys that are missing; of sparse layers, their number.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32128,
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 12,
    "num_decoder_layers": 12,
    "num_heads": 12,
    "tie_word_embeddings": True,
    "num_experts": 8,
    "expert_capacity": 64,
    "router_bias": False,
    "router_jitter_noise": 0.01,
    "router_aux_loss_coef": 0.001,
    "router_z_loss_coef": 0.001,
}
_NUM_SPARSE = 3
_ACTIVATIONS = ["relu", "gelu_new", "gelu", "silu"]


@dataclasses.dataclass(frozen=True)
class _Copy(Tensor):
    """Another name of a tensor, which an export has, and readers do without."""

    of: Tensor | None = None

    def stored(self, tensors: Mapping[str, SavedTensor]) -> SavedTensor:
        assert self.of is not None
        return self.of.stored(tensors)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwitchFamily(T5Family):
    """See `T5Family`. Inside Limba its config.json has T5's key for the activation, and the steps of sparse layers."""

    layer_kind: ClassVar[str] = "switch"
    config_class: ClassVar[type[T5Config]] = SwitchConfig
    numpy_forward: ClassVar[str] = "limba.addons.experts.numpy_switch"

    def with_t5_keys(self, file: Path, content: Mapping[str, Any], ignored: Collection[str] = ()) -> dict[str, Any]:
        found = {key: x for key, x in super().with_t5_keys(file, content, ignored).items() if x is not None}
        for key in ("feed_forward_proj", "is_gated_act"):
            found.pop(key, None)
        if (activation := found.pop("dense_act_fn", "relu")) not in _ACTIVATIONS:
            raise ValueError(f"{file}: dense_act_fn is {shown(activation)}; Limba's experts have {_ACTIVATIONS}.")
        found["feed_forward_proj"] = activation
        for stack, layers in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
            num_sparse = found.pop(f"num_sparse_{stack}_layers", _NUM_SPARSE)
            num_layers = found.get(layers, _DEFAULTS[layers])
            for key, number in ((f"num_sparse_{stack}_layers", num_sparse), (layers, num_layers)):
                number_ranges.check(f"{file}: {key}", number, AT_LEAST_0)
            # As the class has it, which so has a sparse layer for none.
            found.setdefault(f"{stack}_sparse_step", num_layers // num_sparse if num_sparse else num_layers)
        completed = self.completed(found)
        for key, limits in _LIMITS.items():
            number_ranges.check(f"{file}: {key}", completed[key], limits)
        if not isinstance(completed["router_bias"], bool):
            raise ValueError(f"{file}: router_bias is {shown(completed['router_bias'])}; it is true or false.")
        return found

    def with_own_keys(self, content: Mapping[str, Any]) -> dict[str, Any]:
        own = {key: x for key, x in content.items() if key not in ("feed_forward_proj", "scale_decoder_outputs")}
        sparse = {}
        for stack, layers in (("encoder", "num_layers"), ("decoder", "num_decoder_layers")):
            step = content[f"{stack}_sparse_step"]
            counted = (i for i in range(content[layers]) if step == 1 or (step > 1 and i % step == 1))
            sparse[f"num_sparse_{stack}_layers"] = sum(1 for _ in counted)
        return {**own, "dense_act_fn": content["feed_forward_proj"], **sparse, "router_dtype": "float32"}

    def make_network(self, content: Mapping[str, Any], **fields: Any) -> SwitchConfig:
        return SwitchConfig(**fields, **{field: content[key] for field, key in _FIELDS.items()})

    def layer_keys(self, network: T5Config) -> dict[str, Any]:
        return {key: getattr(network, field) for field, key in _FIELDS.items()}

    def table(self, network: T5Config, head: Head, pad_id: int = 0) -> list[Tensor]:
        found = T5Family.table(self, network, head, pad_id)
        if network.logits_via_embedding:
            return found
        # The class of an untied model ties its stacks to `shared` only until weights are loaded.
        shared = next(tensor for tensor in found if tensor.name == self.embeddings[0])
        return [*found, *(_Copy(name, shared.shape, of=shared) for name in self.embeddings[1:])]

    def problem(self, network: T5Config) -> str:
        assert isinstance(network, SwitchConfig)
        if beyond := _beyond_the_class(network):
            return f"the class has no such experts ({', '.join(beyond)})"
        if network.eval_capacity_factor is not None:
            return (
                f"the capacity of its experts depends on the length (eval_capacity_factor = "
                f"{network.eval_capacity_factor}), and the class has a number of tokens; train with "
                "eval_capacity_factor = None, and expert_capacity"
            )
        if len(network.mlp_activations) != 1:
            return f"its feed-forward blocks are gated (mlp_activations = {tuple(network.mlp_activations)})"
        return ""


def _beyond_the_class(network: SwitchConfig) -> list[str]:
    """The settings of a network's experts that the class does not have."""
    beyond = [
        f"{name} = {value!r}" for name, theirs in _OF_THE_CLASS.items() if (value := getattr(network, name)) != theirs
    ]
    if network.sparse_place != "second" and max(network.encoder_sparse_step, network.decoder_sparse_step) > 2:
        beyond.append(f"sparse_place = {network.sparse_place!r}")
    return beyond


def _rows() -> Iterator[Row]:
    for row in ROWS:
        yield Row(row.limba, row.theirs.replace("DenseReluDense", "mlp"))
    for stack, last in (("encoder", 1), ("decoder", 2)):
        own, theirs = f"{stack}/layers_{{i}}/mlp", f"{stack}.block.{{i}}.layer.{last}.mlp"
        yield Row(f"{own}/router", f"{theirs}.router.classifier")
        for name in ("wi", "wi_0", "wi_1", "wo"):
            yield Row(f"{own}/expert/{name}", f"{theirs}.experts.expert_{{e}}.{name}")


FAMILY = SwitchFamily(
    name="switch",
    title="Switch Transformer",
    model_type="switch_transformers",
    model_class="SwitchTransformersForConditionalGeneration",
    network={},
    recognized_by="its network is a SwitchConfig",
    in_bytes=None,
    defaults=_DEFAULTS,
    in_transformers=True,
    activations={"gelu": ("gelu_erf",), "silu": ("silu",)},
    keys=switch_keys.KEYS,
    rows=tuple(_rows()),
    in_flax=False,
)
