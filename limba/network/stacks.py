"""A stack of like layers: unrolled or scanned, and what its backward pass computes again."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import flax.linen as nn
import jax
from flax.linen import partitioning as nn_partitioning

from limba.network import own_layers, products
from limba.network.finite_numbers import interceptors

Array = jax.Array

REMAT_POLICIES = {
    None: None,
    "none": None,
    # Keeps the products of weights and activations, recomputes attention and elementwise work.
    "minimal": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,  # float32
        jax.checkpoint_policies.save_only_these_names(products.PRODUCT_WITHOUT_BATCH_DIMS),  # bfloat16
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class StackConfig(Protocol):
    """The fields of `t5.T5Config` that decide how a stack is run."""

    @property
    def remat_policy(self) -> str | None: ...

    @property
    def param_scan_axis(self) -> int: ...


def apply(
    stack: nn.Module,
    layer_cls: type[nn.Module],
    fields: Sequence[Mapping[str, Any]],
    name: str,
    x: Array,
    *args: Any,
) -> Array:
    """Runs a layer for each of `fields` over `x`: unrolled, or as one scanned layer called `name`.

    Unrolled layers that draw no random numbers are traced once, as a function that is called for each: that halves the
    tracing. XLA puts its body in the place of each call.

    Args:
      stack: the module that calls this; its `config` is a T5Config.
      fields: those in which layers differ, which scanned ones may not.
      args: of each layer. Plain Python bools (`deterministic`, which is the first, `decode` …) are static.
    """
    config = stack.config  # type: ignore[attr-defined]
    if not config.scan_layers:
        rates = [getattr(config, name) for name in config.rates]
        deterministic = next(arg for arg in args if isinstance(arg, bool)) or not any(rates)
        # The parameters are drawn, and perhaps anything in a user's own layers.
        may_draw = stack.is_initializing() or not deterministic or own_layers.of(config)
        once = not may_draw and not interceptors.see_each_layer()
        return unrolled(config, layer_cls, fields, x, *args, traced_once=once)
    layer_cls = recomputed(config, layer_cls, x, *args, in_scan=True)
    assert not any(fields), "scanned layers are alike"
    return scanned(config, layer_cls, {}, len(fields), name, x, *args)


def recomputed(config: StackConfig, layer_cls: type[nn.Module], *args: Any, in_scan: bool) -> type[nn.Module]:
    """The layer for calls with such arguments, with its backward pass as `remat_policy` wants it."""
    policy = REMAT_POLICIES[config.remat_policy]
    if policy is None:
        return layer_cls
    return nn_partitioning.remat(layer_cls, prevent_cse=not in_scan, policy=policy, static_argnums=_static(args))


def _static(args: Sequence[Any]) -> tuple[int, ...]:
    return tuple(i for i, arg in enumerate(args) if isinstance(arg, bool))


def unrolled(
    config: StackConfig,
    layer_cls: type[nn.Module],
    fields: Sequence[Mapping[str, Any]],
    x: Array,
    *args: Any,
    in_scan: bool = False,
    traced_once: bool = False,
) -> Array:
    """Runs a layer for each of `fields`, called `layers_0`, `layers_1` …; layers may differ in their fields.

    With `traced_once` like layers are one function, which can draw no random numbers.
    """
    layer_cls = recomputed(config, layer_cls, x, *args, in_scan=in_scan)
    if traced_once:
        # `nn.jit` counts the module itself.
        layer_cls = nn.jit(layer_cls, rngs=False, static_argnums=tuple(i + 1 for i in _static((x, *args))))
    for i, own in enumerate(fields):
        x, _ = layer_cls(config, **own, name=f"layers_{i}")(x, *args)
    return x


def scanned(
    config: StackConfig,
    layer_cls: type[nn.Module],
    fields: Mapping[str, Any],
    num_layers: int,
    name: str,
    x: Array,
    *args: Any,
) -> Array:
    """Runs one layer, or block of layers, `num_layers` times with parameters of its own each time."""
    scan = nn_partitioning.scan_with_axes(
        layer_cls,
        variable_axes={"params": config.param_scan_axis, "cache": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(nn.broadcast,) * len(args),
        length=num_layers,
        axis_name="layers",
    )
    x, _ = scan(config, **fields, name=name)(x, *args)
    return x
