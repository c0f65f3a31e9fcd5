"""Switch Transformers: T5s in which every step-th layer has experts in place of one MLP.

Parameters have T5X's names where both have them; those of experts lie in one tensor a layer, `mlp/expert/wi/kernel`
`[expert, embed, mlp]`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from flax import traverse_util

from limba.addons.experts import sparse_mlp
from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0, SHARE, Range
from limba.models import metrics as metrics_lib
from limba.network import config_checks, t5

Array = jnp.ndarray
_OWNER = "SwitchConfig"
_FACTORS = ("train_capacity_factor", "eval_capacity_factor")
# Of an expert where a factor says the capacity, as T5X's.
_LEAST_CAPACITY = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwitchConfig(t5.T5Config):
    """The shape of a Switch Transformer: `T5Config`, and experts.

    Attributes:
      num_experts: of a sparse layer.
      encoder_sparse_step, decoder_sparse_step: layers 1, 1 + step, 1 + 2 * step … are sparse, counted from 0; with 1
        all are, with 0 none.
      expert_capacity: how many tokens of a row an expert takes; further ones pass by it. Padding and the tokens of all
        texts of a packed row count.
      train_capacity_factor, eval_capacity_factor: the same in training and elsewhere, as a multiple of a row's length
        divided by the number of experts; at least 4. None is `expert_capacity`, the only one that Hugging Face's class
        has.
      jitter_noise: in training, what the router sees is multiplied by numbers between 1 - this and 1 + this.
      router_bias: whether the router has a bias.
      router_aux_loss_coef, router_z_loss_coef: what of the layers' mean load balance and of their mean z-loss is added
        to the loss, of each stack.

    Raises:
      ValueError: as `T5Config`; for layers that are no T5's; if no layer is sparse.
    """

    mlp_activations: tuple[str, ...] = ("relu",)
    num_experts: int = 8
    encoder_sparse_step: int = 2
    decoder_sparse_step: int = 2
    expert_capacity: int = 64
    train_capacity_factor: float | None = None
    eval_capacity_factor: float | None = None
    jitter_noise: float = 0.01
    router_bias: bool = False
    router_aux_loss_coef: float = 0.01
    router_z_loss_coef: float = 0.001

    layer_kind: ClassVar[str] = "switch"
    rates: ClassVar[tuple[str, ...]] = ("dropout_rate", "jitter_noise")
    of_runs: ClassVar[Mapping[str, Any]] = {"train_capacity_factor": None}
    # Sparse layers and others take turns.
    can_scan: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("num_experts", 1), ("expert_capacity", 1)):
            config_checks.whole_number(_OWNER, name, getattr(self, name), least)
        for name in ("encoder_sparse_step", "decoder_sparse_step"):
            config_checks.whole_number(_OWNER, name, getattr(self, name), 0)
        for name in _FACTORS:
            number_ranges.check(f"{_OWNER}.{name}", getattr(self, name), ABOVE_0._replace(or_none=True))
        number_ranges.check(f"{_OWNER}.jitter_noise", self.jitter_noise, SHARE)
        for name in ("router_aux_loss_coef", "router_z_loss_coef"):
            number_ranges.check(f"{_OWNER}.{name}", getattr(self, name), Range())
        if self.scan_layers:
            raise ValueError(
                f"{_OWNER}.scan_layers is True, and sparse layers and others take turns; set scan_layers = False."
            )
        if self.gemma_layers is not None:
            raise ValueError(f"{_OWNER}.gemma_layers is {self.gemma_layers!r}, and experts stand in T5's layers only.")
        if not any(map(self.num_sparse_layers, (False, True))):
            raise ValueError(
                f"{_OWNER} has no sparse layer: encoder_sparse_step is {self.encoder_sparse_step} and "
                f"decoder_sparse_step {self.decoder_sparse_step}; use smaller steps, above 0, or another network."
            )

    def is_sparse(self, layer: int, is_decoder: bool) -> bool:
        """Whether a layer of a stack has experts."""
        step = self.decoder_sparse_step if is_decoder else self.encoder_sparse_step
        return step == 1 or (step > 1 and layer % step == 1)

    def num_sparse_layers(self, is_decoder: bool) -> int:
        """How many layers of a stack have experts."""
        num_layers = self.num_decoder_layers if is_decoder else self.num_encoder_layers
        return sum(self.is_sparse(i, is_decoder) for i in range(num_layers))

    def capacity(self, length: int, deterministic: bool) -> int:
        """How many tokens of a row of this length an expert takes."""
        factor = self.eval_capacity_factor if deterministic else self.train_capacity_factor
        if factor is None:
            return min(self.expert_capacity, length)
        return min(max(round(factor * length / self.num_experts), _LEAST_CAPACITY), length)

    def layer_fields(self, num_layers: int, is_decoder: bool) -> list[dict[str, Any]]:
        """See `T5Config.layer_fields`."""
        return [{"make_mlp": _sparse_mlp} if self.is_sparse(i, is_decoder) else {} for i in range(num_layers)]

    def network(self) -> "Transformer":
        """The encoder-decoder of this shape."""
        return Transformer(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "SwitchConfig":
        """See `T5Config.from_json`."""
        return cls(**fields)


def _sparse_mlp(config: SwitchConfig) -> nn.Module:
    return sparse_mlp.SparseMlp(config, name="mlp")


class Transformer(t5.Transformer):
    """The encoder-decoder; calls, masks and decoding are those of `t5.Transformer`."""

    config: SwitchConfig

    def added_losses(self, sown: Mapping[str, Any]) -> tuple[Array, metrics_lib.Metrics]:
        """The losses of the routers, and their metrics; see `BaseTransformerModel.loss_fn`.

        The loss is the sum over both stacks of `router_aux_loss_coef` times the mean load balance of their layers and
        `router_z_loss_coef` times the mean z-loss. Metrics are means over layers, without these factors:
        `experts/load_balance` (1 is even), `experts/router_z`, `experts/dropped_tokens` (a share).
        """
        found: dict[tuple[str, str], list[Array]] = {}
        for (stack, *_, name), (value,) in traverse_util.flatten_dict(dict(sown)).items():
            found.setdefault((stack, name), []).append(value)
        cfg, loss = self.config, jnp.float32(0)
        factors = {sparse_mlp.LOAD_BALANCE: cfg.router_aux_loss_coef, sparse_mlp.ROUTER_Z: cfg.router_z_loss_coef}
        for (_, name), values in found.items():
            if name in factors:
                loss += factors[name] * _mean(values)
        figures = {}
        for name in (*factors, sparse_mlp.DROPPED):
            values = [value for (_, of), of_stack in found.items() if of == name for value in of_stack]
            figures[f"experts/{name}"] = metrics_lib.Ratio(_mean(values), jnp.float32(1))
        return loss, figures


def _mean(values: list[Array]) -> Array:
    return sum(values[1:], values[0]) / len(values)
