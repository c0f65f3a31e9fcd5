"""Tiles of references on GPUs: what kernels of attention have in common."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

Array = jax.Array

# Of a logit that does not count; finite, so that a row without any key stays finite.
MASKED = -1e30


def rows(ref: Any, start: Array, length: int, block: int, of_batch: tuple[Array, ...] = ()) -> Array:
    """Rows `start` to `start + block` of a reference, zeros after its end: `[block]` or `[block, head_dim]`.

    Args:
      of_batch: the row of the batch, for a reference that has several.
    """
    inside = start + jnp.arange(block) < length
    if len(ref.shape) - len(of_batch) == 1:
        return plgpu.load(ref.at[(*of_batch, pl.ds(start, block))], mask=inside, other=0)
    return plgpu.load(ref.at[(*of_batch, pl.ds(start, block), slice(None))], mask=inside[:, None], other=0.0)


def store(ref: Any, start: Array, length: int, block: int, values: Array) -> None:
    inside = start + jnp.arange(block) < length
    if values.ndim == 1:
        plgpu.store(ref.at[pl.ds(start, block)], values.astype(ref.dtype), mask=inside)
    else:
        plgpu.store(ref.at[pl.ds(start, block), :], values.astype(ref.dtype), mask=inside[:, None])
