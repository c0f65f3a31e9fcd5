"""The feed-forward block of a sparse layer: a router sends each token to some of several MLPs, up to their capacity.

A group of tokens is a row of the batch, if the configuration gives no size of groups. So what a row gives does not
depend on the other rows. A token that no expert takes gets zeros from the block: the residual passes it on.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning as nn_partitioning

from limba.addons.experts import routing
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.network import layers, products

Array = jax.Array

# What a layer sows, and a network adds up; see `switch.Transformer.added_losses`.
LOAD_BALANCE, ROUTER_Z, DROPPED = "load_balance", "router_z", "dropped_tokens"
USAGE, CONFIDENCE = "usage", "confidence"
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
        rate = cfg.dropout_rate if cfg.expert_dropout_rate is None else cfg.expert_dropout_rate
        hidden = nn.Dropout(rate, broadcast_dims=(-2,))(hidden, deterministic=deterministic)
        return ExpertDense(x.shape[-1], cfg.dtype, ("expert", "mlp", "embed"), name="wo")(hidden)


class SparseMlp(nn.Module):
    """Experts, and the router that chooses some of them for each token, or tokens for them (`routing`).

    It sows into "intermediates", where for E experts the share f of a group's tokens chooses each and P is its mean
    probability in the group:

    - `LOAD_BALANCE`, the mean over groups of E * sum(f * P) (arXiv:2101.03961, equation 4); 0 where experts choose;
    - `ROUTER_Z`, the mean over tokens of logsumexp(logits)^2 (arXiv:2202.08906, equation 5);
    - `DROPPED`, the share of tokens that no expert took, because theirs were full;
    - `USAGE`, the share of the experts' slots that have a token;
    - `CONFIDENCE`, the mean probability of the choices that were carried out.

    Padding counts as other tokens do.

    Attributes:
      kind: of `routing.KINDS`.
    """

    config: Any  # a `switch.SwitchConfig`
    kind: str = routing.TOKENS_CHOOSE

    @nn.compact
    def __call__(self, x: Array, deterministic: bool = False) -> Array:
        """`[batch, length, embed] -> [batch, length, embed]`, what the block adds."""
        shape, groups = x.shape, self.config.num_groups(*x.shape[:2])
        x = x.reshape(groups, -1, shape[-1])
        logits = self._router_logits(x, deterministic)
        block = self._experts_choose if self.kind == routing.EXPERTS_CHOOSE else self._tokens_choose
        return block(x, logits, jax.nn.softmax(logits, axis=-1), deterministic).reshape(shape)

    def _tokens_choose(self, x: Array, logits: Array, probabilities: Array, deterministic: bool) -> Array:
        cfg, (groups, length, embed) = self.config, x.shape
        count, num_slots = cfg.num_selected_experts, cfg.num_experts * cfg.capacity(length, deterministic)
        is_prioritized = self.kind == routing.PRIORITIZED
        chosen = routing.tokens_choose(logits, probabilities, count, num_slots // cfg.num_experts, is_prioritized)
        copies = jnp.tile(x, (1, count, 1))
        outputs = self._outputs(routing.moved(copies, chosen.sources, chosen.slots), deterministic)
        of_choices = routing.moved(outputs, chosen.slots, chosen.sources).reshape(groups, count, length, embed)
        self._sow_routing(logits, probabilities, chosen, num_slots)
        return jnp.sum(of_choices * chosen.weights[..., None].astype(x.dtype), axis=1)

    def _experts_choose(self, x: Array, logits: Array, probabilities: Array, deterministic: bool) -> Array:
        length = x.shape[1]
        tokens, weights = routing.experts_choose(probabilities, self.config.capacity(length, deterministic))
        tokens, weights = tokens.reshape(len(x), -1), weights.reshape(len(x), -1)
        outputs = self._outputs(jnp.take_along_axis(x, tokens[..., None], axis=1), deterministic)
        taken = jnp.any(tokens[..., None] == jnp.arange(length), axis=1)
        self._sow(logits, balance=0.0, dropped=_mean(~taken), usage=1.0, confidence=_mean(weights))
        return routing.added(outputs * weights[..., None].astype(outputs.dtype), tokens, length)

    def _outputs(self, inputs: Array, deterministic: bool) -> Array:
        """Of the experts, `[group, slot, embed]` from vectors in their slots."""
        by_expert = inputs.reshape(len(inputs), self.config.num_experts, -1, inputs.shape[-1])
        outputs = Experts(self.config, name="expert")(_by_expert(by_expert), deterministic)
        # Summed over `model` first: in one step with the way back XLA's partitioner gives wrong numbers (2 x 2 x 2).
        return _by_row(_by_expert(outputs)).reshape(inputs.shape)

    def _router_logits(self, x: Array, deterministic: bool) -> Array:
        """Float32 `[group, length, expert]`, in any dtype of the network (section 2.4 of the paper)."""
        cfg, x = self.config, x.astype(jnp.float32)
        if cfg.jitter_noise and not deterministic:
            noise = cfg.jitter_noise
            x *= jax.random.uniform(self.make_rng("dropout"), x.shape, minval=1.0 - noise, maxval=1.0 + noise)
        axes, use_bias = ("embed", None), cfg.router_bias
        router = layers.DenseGeneral(
            cfg.num_experts, kernel_init=_ROUTER_INIT, kernel_axes=axes, use_bias=use_bias, name="router"
        )
        return router(x)

    def _sow_routing(self, logits: Array, probabilities: Array, chosen: routing.Choices, num_slots: int) -> None:
        num_experts = logits.shape[-1]
        is_chosen = jnp.any(chosen.experts[..., None] == jnp.arange(num_experts), axis=1)
        of_expert = jnp.mean(is_chosen.astype(jnp.float32), axis=1) * jnp.mean(probabilities, axis=1)
        balance = num_experts * jnp.mean(jnp.sum(of_expert, axis=-1))
        is_taken = (chosen.slots < num_slots).reshape(chosen.weights.shape)
        count = jnp.sum(is_taken)
        usage, confidence = count / (len(logits) * num_slots), jnp.sum(chosen.weights * is_taken) / count
        self._sow(logits, balance, _mean(~jnp.any(is_taken, axis=1)), usage, confidence)

    def _sow(self, logits: Array, balance: Any, dropped: Any, usage: Any, confidence: Any) -> None:
        if self.is_initializing():
            return
        self.sow("intermediates", LOAD_BALANCE, jnp.asarray(balance, jnp.float32))
        self.sow("intermediates", ROUTER_Z, jnp.mean(jnp.square(jax.nn.logsumexp(logits, axis=-1))))
        for name, value in ((DROPPED, dropped), (USAGE, usage), (CONFIDENCE, confidence)):
            self.sow("intermediates", name, jnp.asarray(value, jnp.float32))


def _mean(x: Array) -> Array:
    return jnp.mean(x.astype(jnp.float32))


def _has_expert_axis() -> bool:
    """Whether a mesh axis holds the experts."""
    of_mesh = nn_partitioning.logical_to_mesh_axes(("expert",))
    return of_mesh is not None and of_mesh[0] is not None


def _constrained(x: Array, *axes: str | None) -> Array:
    return layers.with_sharding_constraint(x, axes) if _has_expert_axis() else x


# From rows on each device to experts on each device, and back: XLA's all-to-alls.


def _by_expert(x: Array) -> Array:
    return _constrained(x, "expert_replicas", "expert", None, "embed")


def _by_row(x: Array) -> Array:
    return _constrained(x, "batch", None, None, "embed")
