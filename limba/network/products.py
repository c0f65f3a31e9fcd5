"""Matrix products in the precision of the network, in the order and with the results that each device is fast with."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from limba.devices import target

Array = jax.Array
DType = Any

# On CPUs a bf16 product that accumulates and returns float32 runs two to five times faster than one that returns bf16,
# and TPUs fuse the conversion. GPUs write what a product returns to memory, and read it again to convert it: there it
# returns bf16, accumulated in float32 all the same. JAX's own transpose of such a product mixes float32 cotangents with
# bf16 operands, which falls off the fast path again, so the backward is written out: every product has bf16 operands.
# So do products of float32 on CPUs: XLA multiplies a kernel's gradient, whose first operand it would have to transpose,
# at half the speed of the product that reads it transposed (31 against 54 GFLOP per cpu-second, 1,024 x 4,096 x 512,
# on an AMD EPYC without AVX-512).


# What `jax.ad_checkpoint` calls the products of activations with parameters.
PRODUCT_WITHOUT_BATCH_DIMS = "product_without_batch_dims"


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3, 4))
def _einsum_with_own_backward(equation: str, a: Array, b: Array, dtype: DType, of_result: DType) -> Array:
    return product(equation, a.astype(dtype), b.astype(dtype), of_result)


def _einsum_with_own_backward_fwd(
    equation: str, a: Array, b: Array, dtype: DType, of_result: DType
) -> tuple[Array, tuple[Array, Array]]:
    return _einsum_with_own_backward(equation, a, b, dtype, of_result), (a, b)


def _einsum_with_own_backward_bwd(
    equation: str, dtype: DType, of_result: DType, operands: tuple[Array, Array], g: Array
) -> tuple[Array, Array]:
    del of_result
    a, b = operands
    inputs, out = equation.split("->")
    a_dims, b_dims = inputs.split(",")
    g = g.astype(dtype)
    grad_a = product(f"{out},{b_dims}->{a_dims}", g, b.astype(dtype), a.dtype)
    grad_b = product(f"{a_dims},{out}->{b_dims}", a.astype(dtype), g, b.dtype)
    return grad_a, grad_b


_einsum_with_own_backward.defvjp(_einsum_with_own_backward_fwd, _einsum_with_own_backward_bwd)


def product(equation: str, a: Array, b: Array, dtype: DType) -> Array:
    """The product of two arrays of one type, bf16 or on CPUs also float32, accumulated in float32."""
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
        if a.dtype.itemsize < 4 and not _cpu_multiplies_bf16():
            a, b = a.astype(jnp.float32), b.astype(jnp.float32)
        if is_on_one_cpu():
            return _fast_cpu_product(a_dims, b_dims, out, a, b, dtype)
    return jnp.einsum(f"{a_dims},{b_dims}->{out}", a, b, preferred_element_type=jnp.float32).astype(dtype)


def is_on_one_cpu() -> bool:
    """Whether the order of arrays in memory is ours to choose: that of sharded ones is not."""
    mesh = jax.sharding.get_abstract_mesh()
    return target.platform() == "cpu" and (mesh.empty or mesh.size == 1)


def _fast_cpu_product(a_dims: str, b_dims: str, out: str, a: Array, b: Array, dtype: DType) -> Array:
    """A product of operands in the order that XLA's CPU compiler has fast kernels for.

    These are `[shared, own, contracted]` and `[shared, contracted, own]`, or the second one the other way round. In
    other orders, those of kernels' gradients and in attention, it takes five times as long in bf16 and up to twice in
    float32.
    """
    shared = "".join(dim for dim in out if dim in a_dims and dim in b_dims)
    contracted = "".join(dim for dim in a_dims if dim not in out)
    a_own, b_own = ("".join(dim for dim in out if dim in dims and dim not in shared) for dims in (a_dims, b_dims))
    a_order, b_order, order = shared + a_own + contracted, shared + contracted + b_own, shared + a_own + b_own
    if b_dims == shared + b_own + contracted:
        b_order = b_dims
    a, b = _transposed(a, a_dims, a_order), _transposed(b, b_dims, b_order)
    positions = lambda dims, of: tuple(of.index(dim) for dim in dims)  # noqa: E731
    contracting = positions(contracted, a_order), positions(contracted, b_order)
    batch = (tuple(range(len(shared))),) * 2
    # Not by `jnp.einsum`, which takes twice as long to trace.
    product = jax.lax.dot_general(a, b, (contracting, batch), preferred_element_type=jnp.float32)
    # In bf16 already, which is half the memory to move.
    product = product.astype(dtype)
    return product if order == out else product.transpose(positions(out, order))


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
    states, weights = np.zeros((2, 3, 4, 5), jnp.bfloat16), np.zeros((2, 4, 3, 3), jnp.bfloat16)

    def products(states: Array, weights: Array) -> tuple[Array, ...]:  # those of attention
        product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
        return (
            product("bqhd,bkhd->bhqk", states, states),
            product("bhqk,bkhd->bqhd", weights, states),
            product("bhqk,bqhd->bkhd", weights, states),
        )

    try:
        jax.block_until_ready(jax.jit(products).lower(states, weights).compile()(states, weights))
    except jax.errors.JaxRuntimeError:
        return False
    return True


def einsum(equation: str, a: Array, b: Array, dtype: DType, of_result: DType | None = None) -> Array:
    """Contracts two arrays in `dtype`, accumulating in float32; the result has `of_result`, `dtype` by default.

    Every dim of the equation must occur in at least two of its three terms (true of matrix products and attention).
    """
    dtype = jnp.dtype(dtype)
    if dtype.itemsize >= 4 and not (dtype == jnp.float32 and is_on_one_cpu()):
        return jnp.einsum(equation, a.astype(dtype), b.astype(dtype))
    product = _einsum_with_own_backward(equation, a, b, dtype, jnp.dtype(of_result or dtype))
    inputs, out = equation.split("->")
    a_dims, b_dims = inputs.split(",")
    if set(a_dims) & set(b_dims) & set(out):
        return product
    # Policies of recomputation do not see the product behind its own backward; they see a name.
    return checkpoint_name(product, PRODUCT_WITHOUT_BATCH_DIMS)


@jax.custom_vjp
def with_gradient_apart(x: Array) -> Array:
    """The same array, whose gradient from here XLA takes as it is.

    On GPUs a product adds to an array in memory for nothing, but XLA only sees it for the first of two products in a
    sum. One that reads another array's gradient, such as that of queries, then adds to the rest.
    """
    return x


with_gradient_apart.defvjp(lambda x: (x, None), lambda _, g: (jax.lax.optimization_barrier(g),))


def add_bias(x: Array, bias: Array) -> Array:
    """`[..., features]` plus `[features]`."""
    is_slow = target.platform() == "cpu" and x.dtype.itemsize < 4 and _cpu_multiplies_bf16()
    return _add_bias_on_cpu(x, bias) if is_slow else x + bias


@jax.custom_vjp
def _add_bias_on_cpu(x: Array, bias: Array) -> Array:
    return x + bias


def _add_bias_bwd(_: None, g: Array) -> tuple[Array, Array]:
    # XLA's CPU compiler sums bf16 over rows window by window: the biases of BERT base took a ninth of a step. A product
    # with ones is the same sum in float32. Ones are eight rows, because a product with a vector is the slow one again.
    ones = jnp.ones((8, math.prod(g.shape[:-1])), g.dtype)
    return g, product("or,rf->of", ones, g.reshape(-1, g.shape[-1]), jnp.float32)[0].astype(g.dtype)


_add_bias_on_cpu.defvjp(lambda x, bias: (x + bias, None), _add_bias_bwd)
