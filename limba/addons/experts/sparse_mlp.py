"""The feed-forward block of a sparse layer: a router sends each token to one of several MLPs, up to their capacity.

A group of tokens is a row of the batch. So what a row gives does not depend on the other rows, and a token depends on
no later one. A token that comes when its expert is full gets zeros from the block: the residual passes it on.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning as nn_partitioning

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.network import layers, products

Array = jax.Array

# What a layer sows, and a network adds up; see `switch.Transformer.added_losses`.
LOAD_BALANCE, ROUTER_Z, DROPPED = "load_balance", "router_z", "dropped_tokens"
# Of flaxformer's RouterWeights; and the Switch paper's section 2.4 for the experts.
_ROUTER_INIT = nn.initializers.normal(0.02)
_EXPERT_INIT = nn.initializers.variance_scaling(0.1, "fan_in", "truncated_normal", batch_axis=(0,))


class ExpertDense(nn.Module):
    """A product with a kernel of each expert.

    Attributes:
      features: size of the output dim.
      dtype: of the product; the kernels are float32.
      kernel_axes: logical axes of the kernels, `[expert, in, features]`.
    """

    features: int
    dtype: Any
    kernel_axes: tuple[str, str, str]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """`[batch, expert, capacity, in] -> [batch, expert, capacity, features]`"""
        shape = (x.shape[1], x.shape[-1], self.features)
        kernel = layers.param_with_axes("kernel", _EXPERT_INIT, shape, jnp.float32, axes=self.kernel_axes)
        return products.einsum("becd,edf->becf", x, kernel, self.dtype)

    def from_saved(self, tensor: Callable[[str, tuple[int, ...]], SavedTensor], x: Array) -> Array:
        """`__call__` with a kernel on disk, of which one expert's part is in memory at a time.

        Args:
          tensor: gives the parameter of a name and shape.
        """
        kernels = tensor("kernel", (x.shape[1], x.shape[-1], self.features))
        outputs = []
        for i in range(x.shape[1]):
            kernel = np.asarray(kernels.read((slice(i, i + 1), slice(None), slice(None))), np.float32)
            outputs.append(products.einsum("becd,edf->becf", x[:, i : i + 1], jnp.asarray(kernel), self.dtype))
        return jnp.concatenate(outputs, axis=1)


class Experts(nn.Module):
    """The MLPs, with parameters of all experts in one tensor."""

    config: Any  # a `switch.SwitchConfig`

    @nn.compact
    def __call__(self, x: Array, deterministic: bool) -> Array:
        """`[batch, expert, capacity, embed] -> [batch, expert, capacity, embed]`"""
        cfg, activations = self.config, tuple(self.config.mlp_activations)
        hidden: Any = 1
        for i, activation in enumerate(activations):
            name = "wi" if len(activations) == 1 else f"wi_{i}"
            dense = ExpertDense(cfg.mlp_dim, cfg.dtype, ("expert", "embed", "mlp"), name=name)
            hidden = hidden * layers.activation_function(activation)(dense(x))
        hidden = nn.Dropout(cfg.dropout_rate, broadcast_dims=(-2,))(hidden, deterministic=deterministic)
        return ExpertDense(x.shape[-1], cfg.dtype, ("expert", "mlp", "embed"), name="wo")(hidden)


class SparseMlp(nn.Module):
    """Experts, and the router that chooses one of them for each token (top-1).

    It sows `LOAD_BALANCE`, `ROUTER_Z` and `DROPPED` into "intermediates": for E experts, of which the share f of a
    row's tokens chooses each and which have the mean probability P in it, the mean over rows of E * sum(f * P)
    (arXiv:2101.03961, equation 4); the mean over tokens of logsumexp(logits)^2 (arXiv:2202.08906, equation 5); the
    share of tokens that came when their expert was full. Padding counts as other tokens do.
    """

    config: Any  # a `switch.SwitchConfig`

    @nn.compact
    def __call__(self, x: Array, deterministic: bool = False) -> Array:
        """`[batch, length, embed] -> [batch, length, embed]`, what the block adds."""
        cfg, (length, embed) = self.config, x.shape[1:]
        capacity = cfg.capacity(length, deterministic)
        logits = self._router_logits(x, deterministic)
        probabilities = jax.nn.softmax(logits, axis=-1)
        choice = jnp.argmax(logits, axis=-1)
        slots, tokens = places(choice, cfg.num_experts, capacity)
        inputs = moved(x, tokens, slots).reshape(-1, cfg.num_experts, capacity, embed)
        outputs = _by_row(Experts(cfg, name="expert")(_by_expert(inputs), deterministic))
        update = moved(outputs.reshape(x.shape[0], -1, embed), slots, tokens)
        self._sow(logits, probabilities, choice, slots == cfg.num_experts * capacity)
        return update * jnp.max(probabilities, axis=-1, keepdims=True).astype(update.dtype)

    def _router_logits(self, x: Array, deterministic: bool) -> Array:
        """Float32 `[batch, length, expert]`, in any dtype of the network (section 2.4 of the paper)."""
        cfg, x = self.config, x.astype(jnp.float32)
        if cfg.jitter_noise and not deterministic:
            noise = cfg.jitter_noise
            x *= jax.random.uniform(self.make_rng("dropout"), x.shape, minval=1.0 - noise, maxval=1.0 + noise)
        axes, use_bias = ("embed", None), cfg.router_bias
        router = layers.DenseGeneral(
            cfg.num_experts, kernel_init=_ROUTER_INIT, kernel_axes=axes, use_bias=use_bias, name="router"
        )
        return router(x)

    def _sow(self, logits: Array, probabilities: Array, choice: Array, is_dropped: Array) -> None:
        if self.is_initializing():
            return
        num_experts = logits.shape[-1]
        chosen = jnp.mean((choice[..., None] == jnp.arange(num_experts)).astype(jnp.float32), axis=1)
        balance = num_experts * jnp.mean(jnp.sum(chosen * jnp.mean(probabilities, axis=1), axis=-1))
        self.sow("intermediates", LOAD_BALANCE, balance)
        self.sow("intermediates", ROUTER_Z, jnp.mean(jnp.square(jax.nn.logsumexp(logits, axis=-1))))
        self.sow("intermediates", DROPPED, jnp.mean(is_dropped.astype(jnp.float32)))


def places(choice: Array, num_experts: int, capacity: int) -> tuple[Array, Array]:
    """Where each token goes, and what each place gets; the first tokens of a row have precedence.

    Args:
      choice: the expert of each token, `[batch, length]`.

    Returns:
      The slot of each token, `[batch, length]`: `expert * capacity + n`, and `num_experts * capacity` for a token that
      is dropped. The token of each slot, `[batch, num_experts * capacity]`, and `length` for an empty slot.
    """
    length = choice.shape[1]
    is_chosen = (choice[..., None] == jnp.arange(num_experts)).astype(jnp.int32)
    number = jnp.sum(jnp.cumsum(is_chosen, axis=1) * is_chosen, axis=-1) - 1
    slots = jnp.where(number < capacity, choice * capacity + number, num_experts * capacity)
    counts = jnp.sum(is_chosen, axis=1)
    # A sort and a gather, not a scatter: they stay on the device that has the row.
    order = jnp.argsort(choice, axis=1)
    of_expert = jnp.arange(capacity)
    sorted_places = (jnp.cumsum(counts, axis=1) - counts)[..., None] + of_expert
    tokens = jnp.take_along_axis(order, sorted_places.reshape(len(choice), -1), axis=1, mode="clip")
    is_full = (of_expert < counts[..., None]).reshape(len(choice), -1)
    return slots, jnp.where(is_full, tokens, length)


@jax.custom_vjp
def moved(x: Array, sources: Array, targets: Array) -> Array:
    """Of `[batch, n, embed]` the vectors with the numbers `sources` `[batch, m]`, in this order; zeros for number n.

    No vector is taken twice: `targets` `[batch, n]` says where each went, m for nowhere. So the gradient is gathered as
    well, which is faster than a scatter.
    """
    del targets
    return jnp.take_along_axis(x, sources[..., None], axis=1, mode="fill", fill_value=0)


moved.defvjp(
    lambda x, sources, targets: (moved(x, sources, targets), (sources, targets)),
    lambda numbers, g: (moved(g, numbers[1], numbers[0]), None, None),
)


def _has_expert_axis() -> bool:
    """Whether a mesh axis holds the experts."""
    of_mesh = nn_partitioning.logical_to_mesh_axes(("expert",))
    return of_mesh is not None and of_mesh[0] is not None


def _constrained(x: Array, *axes: str | None) -> Array:
    return layers.with_sharding_constraint(x, axes) if _has_expert_axis() else x


# From rows on each device to experts on each device, and back: XLA's all-to-alls.


def _by_expert(x: Array) -> Array:
    return _constrained(x, None, "expert", None, "embed")


def _by_row(x: Array) -> Array:
    return _constrained(x, "batch", None, None, "embed")
