"""A stack of like layers: unrolled or scanned, and what its backward pass computes again."""

from typing import Protocol

import flax.linen as nn
import jax
from flax.linen import partitioning as nn_partitioning

from limba.network import layers

Array = jax.Array

REMAT_POLICIES = {
    None: None,
    "none": None,
    # Keeps the products of weights and activations, recomputes attention and elementwise work.
    "minimal": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,  # float32
        jax.checkpoint_policies.save_only_these_names(layers.PRODUCT_WITHOUT_BATCH_DIMS),  # bfloat16
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class StackConfig(Protocol):
    """The fields of `t5.T5Config` that decide how a stack is run."""

    @property
    def scan_layers(self) -> bool: ...

    @property
    def remat_policy(self) -> str | None: ...

    @property
    def param_scan_axis(self) -> int: ...


def apply(config: StackConfig, layer_cls: type[nn.Module], num_layers: int, name: str, x: Array, *args):
    """Runs `num_layers` layers over `x`: unrolled, or as one scanned layer called `name`.

    The arguments that are plain Python values (`deterministic`, `decode` …) are static under remat.
    """
    policy = REMAT_POLICIES[config.remat_policy]
    if policy is not None:
        static = tuple(i for i, arg in enumerate((x, *args)) if isinstance(arg, bool))
        layer_cls = nn_partitioning.remat(
            layer_cls, prevent_cse=not config.scan_layers, policy=policy, static_argnums=static
        )
    if not config.scan_layers:
        for i in range(num_layers):
            x, _ = layer_cls(config, name=f"layers_{i}")(x, *args)
        return x
    scanned = nn_partitioning.scan_with_axes(
        layer_cls,
        variable_axes={"params": config.param_scan_axis, "cache": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(nn.broadcast,) * len(args),
        length=num_layers,
        axis_name="layers",
    )
    x, _ = scanned(config, name=name)(x, *args)
    return x
