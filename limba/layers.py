"""Dense, embedding, normalization and MLP layers, with T5X's parameter names and logical axes.

Every parameter is declared with `flax.linen.partitioning.param_with_axes`, so its logical axes can be read from the
`params_axes` collection and mapped to the mesh by rules (`limba.partitioning`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning as nn_partitioning

Array = jax.Array
DType = Any
Initializer = Callable[..., Array]

param_with_axes = nn_partitioning.param_with_axes
with_sharding_constraint = nn_partitioning.with_sharding_constraint


# ------------------------------------------------- matrix products -------------------------------------------------
# A bf16 product that accumulates and returns float32 runs two to five times faster than one that returns bf16 on CPUs
# and loses nothing on accelerators. JAX's own transpose of such a product mixes float32 cotangents with bf16 operands,
# which falls off the fast path again, so the backward is written out: every product has bf16 operands.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def _low_precision_einsum(equation: str, a: Array, b: Array, dtype: DType) -> Array:
    return _accumulate_f32(equation, a.astype(dtype), b.astype(dtype)).astype(dtype)


def _low_precision_einsum_fwd(equation, a, b, dtype):
    return _low_precision_einsum(equation, a, b, dtype), (a, b)


def _low_precision_einsum_bwd(equation, dtype, operands, g):
    a, b = operands
    inputs, out = equation.split("->")
    a_dims, b_dims = inputs.split(",")
    g = g.astype(dtype)
    grad_a = _accumulate_f32(f"{out},{b_dims}->{a_dims}", g, b.astype(dtype))
    grad_b = _accumulate_f32(f"{a_dims},{out}->{b_dims}", a.astype(dtype), g)
    return grad_a.astype(a.dtype), grad_b.astype(b.dtype)


_low_precision_einsum.defvjp(_low_precision_einsum_fwd, _low_precision_einsum_bwd)


def _accumulate_f32(equation: str, a: Array, b: Array) -> Array:
    """The product of two low-precision arrays, accumulated and returned in float32."""
    inputs, out = equation.split("->")
    a_dims, b_dims = inputs.split(",")
    # The operand with the first dim of its own goes first. Otherwise XLA's CPU compiler makes a transposed product,
    # for which it has no mixed-precision kernel.
    own = next((dim for dim in out if (dim in a_dims) != (dim in b_dims)), None)
    if own is not None and own in b_dims:
        equation, a, b = f"{b_dims},{a_dims}->{out}", b, a
    if jax.default_backend() == "cpu" and not _cpu_multiplies_bf16():
        return jnp.einsum(equation, a.astype(jnp.float32), b.astype(jnp.float32))
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


@functools.cache
def _cpu_multiplies_bf16() -> bool:
    """Whether this CPU's XLA runs bf16 products into float32; some builds refuse, and only when they run."""
    shape = jax.ShapeDtypeStruct((2, 3, 4, 5), jnp.bfloat16)
    logits = jax.ShapeDtypeStruct((2, 4, 3, 3), jnp.bfloat16)
    try:
        for equation, a, b in (
            ("bqhd,bkhd->bhqk", shape, shape),
            ("bhqk,bkhd->bqhd", logits, shape),
            ("bhqk,bqhd->bkhd", logits, shape),
        ):
            product = functools.partial(jnp.einsum, equation, preferred_element_type=jnp.float32)
            compiled = jax.jit(product).lower(a, b).compile()
            compiled(*(np.zeros(x.shape, x.dtype) for x in (a, b))).block_until_ready()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def einsum(equation: str, a: Array, b: Array, dtype: DType) -> Array:
    """Contracts two arrays in `dtype`, accumulating in float32; the result has `dtype`.

    Every dim of the equation must occur in at least two of its three terms (true of matrix products and attention).
    """
    if jnp.dtype(dtype).itemsize >= 4:
        return jnp.einsum(equation, a.astype(dtype), b.astype(dtype))
    return _low_precision_einsum(equation, a, b, jnp.dtype(dtype))


# ----------------------------------------------------- layers ------------------------------------------------------


class Dense(nn.Module):
    """`[batch, length, in] -> [batch, length, features]`, no bias, float32 parameters.

    Attributes:
      features: size of the last dim of the output.
      kernel_axes: logical axes of the `[in, features]` kernel.
      dtype: of the product.
      kernel_init: T5X's default for MLP and logits is truncated, attention passes its own.
    """

    features: int
    kernel_axes: tuple[str, str]
    dtype: DType = jnp.float32
    kernel_init: Initializer = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        kernel = param_with_axes(
            "kernel", self.kernel_init, (inputs.shape[-1], self.features), jnp.float32, axes=self.kernel_axes
        )
        return einsum("bld,df->blf", inputs, kernel, self.dtype)


class Embed(nn.Module):
    """A table of `[vocab, embed]` embeddings.

    `one_hot` multiplies by one-hot vectors instead of gathering rows. The numbers are the same; it is worth its FLOPs
    only where the vocabulary is sharded over the model axis of a TPU.
    """

    num_embeddings: int
    features: int
    dtype: DType = jnp.float32
    one_hot: bool = False
    embedding_init: Initializer = nn.initializers.normal(stddev=1.0)

    def setup(self):
        self.embedding = param_with_axes(
            "embedding",
            self.embedding_init,
            (self.num_embeddings, self.features),
            jnp.float32,
            axes=("vocab", "embed"),
        )

    def __call__(self, tokens: Array) -> Array:
        """`[batch, length] -> [batch, length, embed]`. Ids outside clamp; vocabularies are checked at start."""
        if self.one_hot:
            one_hot = jax.nn.one_hot(tokens, self.num_embeddings, dtype=self.dtype)
            embedded = einsum("blv,ve->ble", one_hot, self.embedding, self.dtype)
        else:
            embedded = jnp.take(self.embedding, tokens, axis=0, mode="clip").astype(self.dtype)
        return with_sharding_constraint(embedded, ("batch", "length", "embed"))

    def attend(self, query: Array, dtype: DType = jnp.float32) -> Array:
        """Logits against every embedding: `[batch, length, embed] -> [batch, length, vocab]`."""
        return einsum("ble,ve->blv", query, self.embedding, dtype)


class LayerNorm(nn.Module):
    """T5's layer norm: division by the root mean square over `embed`, no mean, no bias (arXiv:1910.07467)."""

    dtype: DType = jnp.float32
    epsilon: float = 1e-6

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = x.astype(jnp.float32)
        scale = param_with_axes("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32, axes=("embed",))
        mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        normalized = (x * jax.lax.rsqrt(mean_square + self.epsilon)).astype(self.dtype)
        return normalized * scale.astype(self.dtype)


def activation_function(name: str) -> Callable[[Array], Array]:
    """An activation by its name in `flax.linen`; "linear" is the identity.

    Raises:
      ValueError: if Flax has none of that name.
    """
    if name == "linear":
        return lambda x: x
    function = getattr(nn, name, None)
    if function is None:
        raise ValueError(f"mlp_activations names {name!r}, which flax.linen does not have; try 'gelu', 'relu', 'silu'.")
    return function


class MlpBlock(nn.Module):
    """The feed-forward block; several activations are multiplied (gated linear units, arXiv:2002.05202)."""

    mlp_dim: int
    activations: Sequence[str]
    dropout_rate: float
    dtype: DType = jnp.float32

    @nn.compact
    def __call__(self, inputs: Array, deterministic: bool) -> Array:
        """`[batch, length, embed] -> [batch, length, embed]`."""
        hidden = None
        for i, name in enumerate(self.activations):
            dense = Dense(
                self.mlp_dim, ("embed", "mlp"), self.dtype, name="wi" if len(self.activations) == 1 else f"wi_{i}"
            )
            branch = activation_function(name)(dense(inputs))
            hidden = branch if hidden is None else hidden * branch
        hidden = nn.Dropout(self.dropout_rate, broadcast_dims=(-2,))(hidden, deterministic=deterministic)
        hidden = with_sharding_constraint(hidden, ("batch", "length", "mlp"))
        return Dense(inputs.shape[-1], ("mlp", "embed"), self.dtype, name="wo")(hidden)
