"""Tiles of arrays `[batch, length, heads x head_dim]` on TPUs: what kernels of attention have in common.

A block has the heads of 128 lanes, two of 64. Products are of all lanes, with zeros for the other heads, which costs a
TPU nothing.
"""

import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp

Array = jax.Array

# Of a logit that does not count; finite, so that a row without any key stays finite.
MASKED = -1e30
# The number of lanes: blocks and what begins within a row are multiples of it.
LANES = 128
_SUBLANES = 8


class Work(Protocol):
    """What a kernel is compiled for.

    Attributes:
      group: heads of a block.
      lanes: of a block.
      precision: of products, for `jax.lax.dot_general`.
    """

    @property
    def head_dim(self) -> int: ...

    @property
    def group(self) -> int: ...

    @property
    def lanes(self) -> int: ...

    @property
    def precision(self) -> Any: ...


def rows(ref: Any, first: Array | int, length: int) -> Array:
    """A block `[block, lanes]` with zeros after the end of its array, where there may be anything."""
    if length % ref.shape[0] == 0:
        return ref[...]
    inside = first + jax.lax.broadcasted_iota(jnp.int32, ref.shape, 0) < length
    # Selected in 32 bits: masks of 16-bit arrays have another layout.
    wide = ref[...].astype(jnp.float32)
    return jnp.where(inside, wide, jnp.zeros_like(wide)).astype(ref.dtype)


def of_head(work: Work, head: int, dtype: Any) -> Array:
    """`[1, lanes]`: 1 where the lanes are those of a head of the block."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, work.lanes), 1)
    return ((lane >= head * work.head_dim) & (lane < (head + 1) * work.head_dim)).astype(jnp.float32).astype(dtype)


def dot(work: Work, a: Array, b: Array, contracted: tuple[int, int]) -> Array:
    axes = ((contracted[:1], contracted[1:]), ((), ()))
    return jax.lax.dot_general(a, b, axes, precision=work.precision, preferred_element_type=jnp.float32)


def upright(row: Array) -> Array:
    """`[1, n]` as `[n, 1]`."""
    return jnp.broadcast_to(row, (_SUBLANES, row.shape[1])).T[:, :1]


def flat(column: Array) -> Array:
    """`[n, 1]` as `[1, n]`."""
    return jnp.broadcast_to(column, (column.shape[0], LANES)).T[:1]


def by_lane(work: Work, rows: list[Array]) -> Array:
    """Numbers of each head by query, `[1, query_block]`, as factors of its lanes, `[query_block, lanes]`."""
    factors = [upright(row) * of_head(work, head, jnp.float32) for head, row in enumerate(rows)]
    return functools.reduce(jnp.add, factors)


def group_of(heads: int, head_dim: int) -> int:
    """Heads of a block: as many as fill the lanes, or all of them, since a block is whole lanes or a whole row."""
    group = max(1, LANES // head_dim)
    return group if heads % group == 0 else heads
