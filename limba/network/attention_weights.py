"""The softmax of attention: right for logits of any size, and for queries that may look nowhere."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
DType = Any

# Added to a masked logit. The sum is this number whatever the logit was, so all logits of a fully masked row are equal.
# Finite, because infinite ones would make that row NaN.
MASKED = -(2.0**100)


def attention_weights(logits: Array, mask: Array | None, dtype: DType) -> Array:
    """The softmax in `dtype` over the last dim of float32 logits; 0 where `mask` is False.

    Not of logits in bfloat16. These are up to 32 off at 1e4, and XLA may round the maximum and not what it is
    subtracted from: a row whose exponentials are then all 0 or infinite is NaN.

    A query that may look nowhere weighs all keys alike. The mask is added and not put in place, so that the gradient
    of such a row is T5X's.
    """
    if mask is not None:
        logits += jnp.where(mask, 0.0, MASKED).astype(logits.dtype)
    return _softmax(logits, dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _softmax(logits: Array, dtype: DType) -> Array:
    powers = jnp.exp(logits - jnp.max(logits, axis=-1, keepdims=True))
    return (powers / jnp.sum(powers, axis=-1, keepdims=True)).astype(dtype)


@_softmax.defjvp
def _softmax_jvp(dtype: DType, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # The backward pass keeps the weights in `dtype`: in bfloat16 half of the memory.
    weights, (tangent,) = _softmax(*primals, dtype), tangents
    wide = weights.astype(tangent.dtype)
    return weights, (wide * (tangent - jnp.sum(wide * tangent, axis=-1, keepdims=True))).astype(dtype)
