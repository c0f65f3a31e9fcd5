"""Dense, embedding, normalization and MLP layers, with T5X's fields, parameter names and logical axes.

Every parameter is declared with `flax.linen.partitioning.param_with_axes`, so its logical axes can be read from the
`params_axes` collection and mapped to the mesh by rules (`limba.partitioning.meshes`).
"""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning as nn_partitioning
from jax.ad_checkpoint import checkpoint_name

from limba.kernels import target

Array = jax.Array
DType = Any
Initializer = Callable[..., Array]

param_with_axes = nn_partitioning.param_with_axes
with_sharding_constraint = nn_partitioning.with_sharding_constraint


# ------------------------------------------------- matrix products -------------------------------------------------
# On CPUs a bf16 product that accumulates and returns float32 runs two to five times faster than one that returns bf16,
# and TPUs fuse the conversion. GPUs write what a product returns to memory, and read it again to convert it: there it
# returns bf16, accumulated in float32 all the same. JAX's own transpose of such a product mixes float32 cotangents with
# bf16 operands, which falls off the fast path again, so the backward is written out: every product has bf16 operands.


# What `jax.ad_checkpoint` calls the products of activations with parameters.
PRODUCT_WITHOUT_BATCH_DIMS = "product_without_batch_dims"


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def _low_precision_einsum(equation: str, a: Array, b: Array, dtype: DType) -> Array:
    return _product(equation, a.astype(dtype), b.astype(dtype), dtype)


def _low_precision_einsum_fwd(equation, a, b, dtype):
    return _low_precision_einsum(equation, a, b, dtype), (a, b)


def _low_precision_einsum_bwd(equation, dtype, operands, g):
    a, b = operands
    inputs, out = equation.split("->")
    a_dims, b_dims = inputs.split(",")
    g = g.astype(dtype)
    grad_a = _product(f"{out},{b_dims}->{a_dims}", g, b.astype(dtype), a.dtype)
    grad_b = _product(f"{a_dims},{out}->{b_dims}", a.astype(dtype), g, b.dtype)
    return grad_a, grad_b


_low_precision_einsum.defvjp(_low_precision_einsum_fwd, _low_precision_einsum_bwd)


def _product(equation: str, a: Array, b: Array, dtype: DType) -> Array:
    """The product of two low-precision arrays, accumulated in float32."""
    if target.platform() == "gpu":
        return jnp.einsum(equation, a, b, preferred_element_type=dtype)
    inputs, out = equation.split("->")
    a_dims, b_dims = inputs.split(",")
    # The operand with the first dim of its own goes first. Otherwise XLA's CPU compiler makes a transposed product,
    # for which it has no mixed-precision kernel.
    own = next((dim for dim in out if (dim in a_dims) != (dim in b_dims)), None)
    if own is not None and own in b_dims:
        a_dims, b_dims, a, b = b_dims, a_dims, b, a
    if target.platform() == "cpu":
        mesh = jax.sharding.get_abstract_mesh()
        if not _cpu_multiplies_bf16():
            a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        elif mesh.empty or mesh.size == 1:  # The order in memory of a sharded array is not ours to choose.
            return _fast_cpu_product(a_dims, b_dims, out, a, b, dtype)
    return jnp.einsum(f"{a_dims},{b_dims}->{out}", a, b, preferred_element_type=jnp.float32).astype(dtype)


def _fast_cpu_product(a_dims: str, b_dims: str, out: str, a: Array, b: Array, dtype: DType) -> Array:
    """A product of operands in the order that XLA's CPU compiler has fast kernels for.

    These are `[shared, own, contracted]` and `[shared, contracted, own]`, or the second one the other way round. It
    multiplies others in float32, at a fifth of the speed: those of kernels' gradients, and in attention.
    """
    shared = "".join(dim for dim in out if dim in a_dims and dim in b_dims)
    contracted = "".join(dim for dim in a_dims if dim not in out)
    a_own, b_own = ("".join(dim for dim in out if dim in dims and dim not in shared) for dims in (a_dims, b_dims))
    a_order, b_order, order = shared + a_own + contracted, shared + contracted + b_own, shared + a_own + b_own
    if b_dims == shared + b_own + contracted:
        b_order = b_dims
    a, b = _transposed(a, a_dims, a_order), _transposed(b, b_dims, b_order)
    product = jnp.einsum(f"{a_order},{b_order}->{order}", a, b, preferred_element_type=jnp.float32)
    # In bf16 already, which is half the memory to move.
    return product.astype(dtype).transpose([order.index(dim) for dim in out])


def _transposed(x: Array, dims: str, order: str) -> Array:
    """An array with its dims in another order."""
    if dims == order:
        return x
    x = x.transpose([dims.index(dim) for dim in order])
    # Behind the barrier it has this order in memory too, where XLA would only call it so.
    return jax.lax.optimization_barrier(x.reshape(-1)).reshape(x.shape)


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
    product = _low_precision_einsum(equation, a, b, jnp.dtype(dtype))
    inputs, out = equation.split("->")
    a_dims, b_dims = inputs.split(",")
    if set(a_dims) & set(b_dims) & set(out):
        return product
    # Policies of recomputation do not see the product behind its own backward; they see a name.
    return checkpoint_name(product, PRODUCT_WITHOUT_BATCH_DIMS)


def _add_bias(x: Array, bias: Array) -> Array:
    """`[..., features]` plus `[features]`."""
    is_slow = target.platform() == "cpu" and x.dtype.itemsize < 4 and _cpu_multiplies_bf16()
    return _add_bias_on_cpu(x, bias) if is_slow else x + bias


@jax.custom_vjp
def _add_bias_on_cpu(x: Array, bias: Array) -> Array:
    return x + bias


def _add_bias_bwd(_, g: Array) -> tuple[Array, Array]:
    # XLA's CPU compiler sums bf16 over rows window by window: the biases of BERT base took a ninth of a step. A product
    # with ones is the same sum in float32. Ones are eight rows, because a product with a vector is the slow one again.
    ones = jnp.ones((8, math.prod(g.shape[:-1])), g.dtype)
    return g, _product("or,rf->of", ones, g.reshape(-1, g.shape[-1]), jnp.float32)[0].astype(g.dtype)


_add_bias_on_cpu.defvjp(lambda x, bias: (x + bias, None), _add_bias_bwd)


# ----------------------------------------------------- layers ------------------------------------------------------


class DenseGeneral(nn.Module):
    """A product over some dims of the inputs; the parameters are float32.

    Attributes:
      features: size of the output dim, or of several.
      axis: the dim of the inputs that is contracted, or several.
      dtype: of the product.
      kernel_init: called with a kernel's shape as a matrix, `[contracted, features]`. T5X's default for MLP and logits
        is truncated, attention passes its own.
      kernel_axes: logical axes of the kernel. One name a dim makes a kernel of that many dims, such as
        `[embed, heads, kv]`; two names for more dims make a matrix, such as `[embed, joined_kv]`.
      use_bias: add a bias, whose axes are the kernel's without the contracted ones.
    """

    features: int | Sequence[int]
    axis: int | Sequence[int] = -1
    dtype: DType = jnp.float32
    kernel_init: Initializer = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
    kernel_axes: tuple[str, ...] = ()
    use_bias: bool = False

    @nn.compact
    def __call__(self, inputs: Array, only_kernel: bool = False) -> Array:
        """The contracted dims go, `features` come last: `[batch, length, in] -> [batch, length, features]`.

        With `only_kernel` it returns the kernel as a matrix instead, for whoever multiplies in another way.
        """
        features, axis = ((x,) if isinstance(x, int) else tuple(x) for x in (self.features, self.axis))
        inputs = jnp.moveaxis(inputs, axis, tuple(range(-len(axis), 0)))
        kept, contracted = inputs.shape[: -len(axis)], inputs.shape[-len(axis) :]
        matrix = (math.prod(contracted), math.prod(features))
        one_name_a_dim = len(self.kernel_axes) == len(contracted) + len(features)
        kernel = param_with_axes(
            "kernel",
            lambda rng, shape, dtype: self.kernel_init(rng, matrix, dtype).reshape(shape),
            (*contracted, *features) if one_name_a_dim else matrix,
            jnp.float32,
            axes=self.kernel_axes,
        )
        if only_kernel:
            return kernel.reshape(matrix)
        dims = "blpqrs"[: len(kept)]
        product = einsum(f"{dims}d,df->{dims}f", inputs.reshape(*kept, matrix[0]), kernel.reshape(matrix), self.dtype)
        if self.use_bias:
            shape = features if one_name_a_dim else matrix[1:]
            axes = self.kernel_axes[len(contracted) if one_name_a_dim else -1 :]
            bias = param_with_axes("bias", nn.initializers.zeros, shape, jnp.float32, axes=axes)
            product = _add_bias(product, bias.reshape(matrix[1]).astype(self.dtype))
        return product.reshape(*kept, *features)


class Embed(nn.Module):
    """A table of embeddings, `[vocab, embed]`.

    Attributes:
      num_embeddings, features: the table's shape.
      cast_input_dtype: a type that tokens are cast to first.
      dtype: of the embedded tokens.
      attend_dtype: of the logits that `attend` returns; `dtype` when None.
      embedding_init: of the table.
      one_hot: multiply by one-hot vectors instead of gathering rows. The numbers are the same; it is worth its FLOPs
        only where the vocabulary is sharded over the model axis of a TPU.
      axes: logical axes of the table, for tables whose rows are not a vocabulary.
    """

    num_embeddings: int
    features: int
    cast_input_dtype: DType | None = None
    dtype: DType = jnp.float32
    attend_dtype: DType | None = None
    embedding_init: Initializer = nn.initializers.variance_scaling(1.0, "fan_in", "normal", out_axis=0)
    one_hot: bool = False
    axes: tuple[str, str] = ("vocab", "embed")

    def setup(self):
        shape = (self.num_embeddings, self.features)
        self.embedding = param_with_axes("embedding", self.embedding_init, shape, jnp.float32, axes=self.axes)

    def __call__(self, tokens: Array) -> Array:
        """`[batch, length] -> [batch, length, embed]`. Ids outside clamp; vocabularies are checked at start.

        Raises:
          ValueError: if the tokens are not integers.
        """
        if self.cast_input_dtype:
            tokens = tokens.astype(self.cast_input_dtype)
        if not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise ValueError(f"Embed got tokens of type {tokens.dtype}; cast them to int32, or set cast_input_dtype.")
        if self.one_hot:
            one_hot = jax.nn.one_hot(tokens, self.num_embeddings, dtype=self.dtype)
            embedded = einsum("blv,ve->ble", one_hot, self.embedding, self.dtype)
        else:
            embedded = jnp.take(self.embedding, tokens, axis=0, mode="clip").astype(self.dtype)
        return with_sharding_constraint(embedded, ("batch", "length", "embed"))

    def attend(self, query: Array) -> Array:
        """Logits against every embedding: `[batch, length, embed] -> [batch, length, vocab]`."""
        return einsum("ble,ve->blv", query, self.embedding, self.attend_dtype or self.dtype)


class LayerNorm(nn.Module):
    """T5's layer norm: division by the root mean square over `embed`, no mean, no bias (arXiv:1910.07467)."""

    epsilon: float = 1e-6
    dtype: DType = jnp.float32
    scale_init: Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = x.astype(jnp.float32)
        scale = param_with_axes("scale", self.scale_init, (x.shape[-1],), jnp.float32, axes=("embed",))
        mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        normalized = (x * jax.lax.rsqrt(mean_square + self.epsilon)).astype(self.dtype)
        return normalized * scale.astype(self.dtype)


class CenteredLayerNorm(nn.Module):
    """Layer norm with the mean taken off, as in BERT (arXiv:1607.06450); computed in float32.

    Attributes:
      epsilon: added to the variance.
      dtype: of the result.
      use_bias: add a bias after the scale; ModernBERT has none.
    """

    epsilon: float = 1e-12
    dtype: DType = jnp.float32
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (x.shape[-1],)
        x = x.astype(jnp.float32)
        centered = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(centered), axis=-1, keepdims=True)
        scale = param_with_axes("scale", nn.initializers.ones, shape, jnp.float32, axes=("embed",))
        normalized = centered * jax.lax.rsqrt(variance + self.epsilon) * scale
        if self.use_bias:
            normalized += param_with_axes("bias", nn.initializers.zeros, shape, jnp.float32, axes=("embed",))
        return normalized.astype(self.dtype)


def activation_function(name: str | Callable[[Array], Array]) -> Callable[[Array], Array]:
    """An activation by its name in `flax.linen`; "linear" is the identity, and a function stands for itself.

    Flax's "gelu" is the approximation by tanh; "gelu_erf" is the exact function, Hugging Face's "gelu".

    Raises:
      ValueError: if Flax has none of that name.
    """
    if callable(name):
        return name
    if name == "linear":
        return lambda x: x
    if name == "gelu_erf":
        return functools.partial(nn.gelu, approximate=False)
    function = getattr(nn, name, None)
    if function is None:
        raise ValueError(f"mlp_activations names {name!r}, which flax.linen does not have; try 'gelu', 'relu', 'silu'.")
    return function


class MlpBlock(nn.Module):
    """The feed-forward block; several activations are multiplied (gated linear units, arXiv:2002.05202)."""

    intermediate_dim: int = 2048
    activations: Sequence[str | Callable[[Array], Array]] = ("relu",)
    kernel_init: Initializer = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal")
    intermediate_dropout_rate: float = 0.1
    dtype: DType = jnp.float32
    kernels: str = "auto"
    use_bias: bool = False

    @nn.compact
    def __call__(self, inputs: Array, decode: bool = False, deterministic: bool = False) -> Array:
        """`[batch, length, embed] -> [batch, length, embed]`; decoding makes no difference."""
        del decode
        dense = functools.partial(DenseGeneral, dtype=self.dtype, kernel_init=self.kernel_init, use_bias=self.use_bias)
        branches = []
        for i in range(len(self.activations)):
            wi_name = "wi" if len(self.activations) == 1 else f"wi_{i}"
            wi = dense(self.intermediate_dim, kernel_axes=("embed", "mlp"), name=wi_name)
            branches.append(wi(inputs))

        def activate(*branches: Array) -> Array:
            return functools.reduce(
                operator.mul, (activation_function(name)(x) for name, x in zip(self.activations, branches, strict=True))
            )

        # The backward pass computes the activations again: reading them from memory would take longer.
        hidden = (jax.checkpoint(activate) if target.wants_kernels(self.kernels) else activate)(*branches)
        hidden = nn.Dropout(self.intermediate_dropout_rate, broadcast_dims=(-2,))(hidden, deterministic=deterministic)
        hidden = with_sharding_constraint(hidden, ("batch", "length", "mlp"))
        return dense(inputs.shape[-1], kernel_axes=("mlp", "embed"), name="wo")(hidden)
