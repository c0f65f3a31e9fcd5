"""Switch Transformers, and T5s with experts of other kinds: every step-th layer has several MLPs in place of one.

Parameters have T5X's names where both have them; those of experts lie in one tensor a layer, `mlp/expert/wi/kernel`
`[expert, embed, mlp]`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from flax import traverse_util

from limba.addons.experts import routing, sparse_mlp
from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0, AT_LEAST_1, SHARE, Range
from limba.models import metrics as metrics_lib
from limba.network import config_checks, layers, t5

Array = jnp.ndarray
_OWNER = "SwitchConfig"
_FACTORS = ("train_capacity_factor", "eval_capacity_factor")
# Which of `step` layers is sparse: the second, as in Hugging Face's class, or the last, as in flaxformer.
_SECOND, _LAST = "second", "last"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwitchConfig(t5.T5Config):
    """The shape of a Switch Transformer: `T5Config`, and experts.

    Attributes:
      num_experts: of a sparse layer.
      encoder_sparse_step, decoder_sparse_step: of so many layers one is sparse; with 1 all are, with 0 none.
      sparse_place: which one: the "second", as Hugging Face's class has it, or the "last", as flaxformer.
      num_selected_experts: of a token, where tokens choose.
      encoder_routing: "tokens_choose"; "tokens_choose_prioritized", in which tokens that the router is surest of have
        precedence; "experts_choose". The last two look at later tokens, so the decoder's tokens always choose in order.
      expert_capacity: how many tokens of a group an expert takes; further ones pass by it. Padding and the tokens of
        all texts of a packed row count.
      train_capacity_factor, eval_capacity_factor: the same in training and elsewhere, as a multiple of a group's length
        divided by the number of experts. None is `expert_capacity`, the only one that Hugging Face's class has.
      min_expert_capacity: the least that a factor gives.
      group_size: tokens of a group at most, or a few more, of several rows or of a part of one; None is a row.
      extra_mlp: whether sparse layers have a dense block of the same size, too, behind the sparse one (ST-MoE,
        arXiv:2202.08906).
      expert_dropout_rate: inside of experts; None is `dropout_rate`.
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
    sparse_place: str = _SECOND
    num_selected_experts: int = 1
    encoder_routing: str = routing.TOKENS_CHOOSE
    expert_capacity: int = 64
    train_capacity_factor: float | None = None
    eval_capacity_factor: float | None = None
    min_expert_capacity: int = 4
    group_size: int | None = None
    extra_mlp: bool = False
    expert_dropout_rate: float | None = None
    jitter_noise: float = 0.01
    router_bias: bool = False
    router_aux_loss_coef: float = 0.01
    router_z_loss_coef: float = 0.001

    layer_kind: ClassVar[str] = "switch"
    rates: ClassVar[tuple[str, ...]] = ("dropout_rate", "expert_dropout_rate", "jitter_noise")
    of_runs: ClassVar[Mapping[str, Any]] = {"train_capacity_factor": None, "expert_dropout_rate": None}
    # Sparse layers and others take turns.
    can_scan: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_experts", "num_selected_experts", "expert_capacity", "min_expert_capacity"):
            config_checks.whole_number(_OWNER, name, getattr(self, name), 1)
        number_ranges.check(f"{_OWNER}.group_size", self.group_size, AT_LEAST_1._replace(or_none=True))
        config_checks.choice(_OWNER, "sparse_place", self.sparse_place, (_SECOND, _LAST))
        config_checks.choice(_OWNER, "encoder_routing", self.encoder_routing, routing.KINDS)
        if self.expert_dropout_rate is not None:
            config_checks.dropout_rate(_OWNER, "expert_dropout_rate", self.expert_dropout_rate)
        if self.num_selected_experts > self.num_experts:
            raise ValueError(
                f"{_OWNER}.num_selected_experts is {self.num_selected_experts}, of {self.num_experts} experts "
                "(num_experts); use fewer."
            )
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
        return step == 1 or (step > 1 and layer % step == (1 if self.sparse_place == _SECOND else step - 1))

    def num_sparse_layers(self, is_decoder: bool) -> int:
        """How many layers of a stack have experts."""
        num_layers = self.num_decoder_layers if is_decoder else self.num_encoder_layers
        return sum(self.is_sparse(i, is_decoder) for i in range(num_layers))

    def num_groups(self, rows: int, length: int) -> int:
        """How many groups the tokens of a batch are: rows, or as many as `group_size` asks for.

        Then it is the least multiple of the number of experts that divides the tokens, from tokens // group_size on, as
        in flaxformer. Where the experts do not divide the tokens, and for steps of decoding, groups are rows.
        """
        tokens = rows * length
        if self.group_size is None or length == 1 or tokens % self.num_experts:
            return rows
        least = max(tokens // self.group_size, self.num_experts)
        return next(n for n in range(least, tokens + 1) if tokens % n == 0 and n % self.num_experts == 0)

    def capacity(self, length: int, deterministic: bool) -> int:
        """How many tokens of a group of this length an expert takes."""
        factor = self.eval_capacity_factor if deterministic else self.train_capacity_factor
        if factor is None:
            return min(self.expert_capacity, length)
        return min(max(round(factor * length / self.num_experts), self.min_expert_capacity), length)

    def layer_fields(self, num_layers: int, is_decoder: bool) -> list[dict[str, Any]]:
        """See `T5Config.layer_fields`."""
        kind = routing.TOKENS_CHOOSE if is_decoder else self.encoder_routing
        sparse: dict[str, Any] = {"make_mlp": _SPARSE_MLPS[kind]}
        if self.extra_mlp:
            sparse["make_block"] = _extra_block
        return [sparse if self.is_sparse(i, is_decoder) else {} for i in range(num_layers)]

    @property
    def card_rows(self) -> list[tuple[str, str]]:
        """What a model's card says of the experts, beside the number of all parameters."""
        layers = sum(map(self.num_sparse_layers, (False, True)))
        unused = layers * (self.num_experts - self.num_selected_experts)
        unused *= (len(self.mlp_activations) + 1) * self.emb_dim * self.mlp_dim
        of_token = f"{self.num_selected_experts} of {self.num_experts}, in {layers} sparse layers"
        return [("experts of a token", f"{of_token}; {unused:,} of the parameters are the other experts'")]

    def network(self) -> "Transformer":
        """The encoder-decoder of this shape."""
        return Transformer(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "SwitchConfig":
        """See `T5Config.from_json`."""
        return cls(**fields)


def sparse_step(num_layers: int, num_sparse_layers: int) -> int:
    """The step of so many sparse layers, as flaxformer's files count them: `@switch.sparse_step()`.

    Raises:
      ValueError: if they do not divide the layers.
    """
    if num_sparse_layers and num_layers % num_sparse_layers:
        raise ValueError(
            f"sparse_step: {num_sparse_layers} sparse layers (NUM_ENCODER_SPARSE_LAYERS, NUM_DECODER_SPARSE_LAYERS) do "
            f"not divide {num_layers} layers; use a divisor."
        )
    return num_layers // num_sparse_layers if num_sparse_layers else 0


def _sparse_mlp(config: SwitchConfig, kind: str) -> nn.Module:
    return sparse_mlp.SparseMlp(config, kind, name="mlp")


# Of each kind of routing, so that layers that are alike are equal.
_SPARSE_MLPS = {kind: functools.partial(_sparse_mlp, kind=kind) for kind in routing.KINDS}


def _extra_block(config: SwitchConfig, x: Array, deterministic: bool) -> Array:
    """The dense block behind a sparse one, with its own norm and residual."""
    norm = layers.ResidualLayerNorm(dtype=config.dtype, kernels=config.kernels, name="pre_extra_mlp_layer_norm")
    mlp = layers.MlpBlock(
        intermediate_dim=config.mlp_dim,
        activations=tuple(config.mlp_activations),
        intermediate_dropout_rate=config.dropout_rate,
        dtype=config.dtype,
        kernels=config.kernels,
        name="extra_mlp",
    )
    x, y = norm(x)
    y = nn.Dropout(config.dropout_rate, broadcast_dims=(-2,))(mlp(y, deterministic), deterministic)
    return layers.with_sharding_constraint(x + y, ("batch", "length", "embed"))


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
