"""Attention with a layout of blocks on GPUs, in Pallas by Triton: only tiles with something to see are computed.

As `attention_gpu`, without a bias; a program follows its tile's part of the list of `tile_pairs`. What a query sees of
a tile of keys is one number: a bit for each block.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from limba.addons.block_sparse import tile_pairs
from limba.addons.block_sparse.tile_pairs import Layout, TilePairs
from limba.network.kernels import gpu_tiles

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class _Work:
    """What the kernels are compiled for.

    Attributes:
      length: of a row.
      tile: queries and keys of a tile.
    """

    layout: Layout
    batch: int
    heads: int
    length: int
    head_dim: int
    tile: int
    interpret: bool

    @property
    def tiles(self) -> int:
        return pl.cdiv(self.length, self.tile)

    def pairs(self, by_keys: bool) -> TilePairs:
        return tile_pairs.tile_pairs(self.layout, self.length, self.tile, by_keys=by_keys)


class _List(NamedTuple):
    """The pairs of a head: `starts` `[tiles + 1]`, the `other` tile of each pair `[pairs]`, `bits` `[pairs, tile]`."""

    starts: Any
    other: Any
    bits: Any


# ----------------------------------------------------- kernels ----------------------------------------------------
# References: q, k, v, o and their gradients [length, head_dim]; segments, log-sums and what is subtracted from the
# gradients of the weights [length].


def _pairs_of(pairs: _List, tile: Array) -> tuple[Array, Array]:
    return plgpu.load(pairs.starts.at[tile]), plgpu.load(pairs.starts.at[tile + 1])


def _allowed(work: _Work, pairs: _List, pair: Array, first_query: Array, first_key: Array, segments: Any) -> Array:
    """Which logits of a tile count, `[queries, keys]`."""
    places = jnp.arange(work.tile)
    bits = plgpu.load(pairs.bits.at[pair, pl.ds(0, work.tile)])
    sees = (bits[:, None] >> jax.lax.div(places, work.layout.block)[None, :]) & 1
    of_queries, of_keys = (gpu_tiles.rows(segments, x, work.length, work.tile) for x in (first_query, first_key))
    inside = (first_query + places < work.length)[:, None] & (first_key + places < work.length)[None, :]
    return (sees != 0) & inside & (of_queries[:, None] == of_keys[None, :])


def _forward(q_ref, k_ref, v_ref, segments, pairs, o_ref, logsum_ref, *, work: _Work):
    query_tile = pl.program_id(0)
    first_query = query_tile * work.tile
    q = gpu_tiles.rows(q_ref, first_query, work.length, work.tile)

    def add_keys(pair, carry):
        total, highest, sums = carry
        first_key = plgpu.load(pairs.other.at[pair]) * work.tile
        k, v = (gpu_tiles.rows(ref, first_key, work.length, work.tile) for ref in (k_ref, v_ref))
        allowed = _allowed(work, pairs, pair, first_query, first_key, segments)
        logits = jnp.where(allowed, plgpu.dot(q, k.T), gpu_tiles.MASKED)
        new_highest = jnp.maximum(highest, jnp.max(logits, axis=1))
        weights = jnp.where(allowed, jnp.exp(logits - new_highest[:, None]), 0.0)
        shrink = jnp.exp(highest - new_highest)
        total = total * shrink[:, None] + plgpu.dot(weights.astype(v.dtype), v)
        return total, new_highest, sums * shrink + jnp.sum(weights, axis=1)

    start = (
        jnp.zeros((work.tile, work.head_dim), jnp.float32),
        jnp.full((work.tile,), gpu_tiles.MASKED, jnp.float32),
        jnp.zeros((work.tile,), jnp.float32),
    )
    total, highest, sums = jax.lax.fori_loop(*_pairs_of(pairs, query_tile), add_keys, start)
    sums = jnp.where(sums > 0.0, sums, 1.0)
    gpu_tiles.store(o_ref, first_query, work.length, work.tile, total / sums[:, None])
    gpu_tiles.store(logsum_ref, first_query, work.length, work.tile, highest + jnp.log(sums))


def _weights_and_gradients(q, k, v, do, logsum, shift, allowed):
    """Of a tile: the weights, and the gradient of the logits."""
    weights = jnp.where(allowed, jnp.exp(plgpu.dot(q, k.T) - logsum[:, None]), 0.0)
    return weights, weights * (plgpu.dot(do, v.T) - shift[:, None])


def _query_gradients(
    q_ref, k_ref, v_ref, segments, pairs, do_ref, logsum_ref, shift_ref, dq_ref, *, work: _Work
):  # fmt: skip
    query_tile = pl.program_id(0)
    first_query = query_tile * work.tile
    q, do, logsum, shift = (
        gpu_tiles.rows(ref, first_query, work.length, work.tile) for ref in (q_ref, do_ref, logsum_ref, shift_ref)
    )

    def add_keys(pair, dq):
        first_key = plgpu.load(pairs.other.at[pair]) * work.tile
        k, v = (gpu_tiles.rows(ref, first_key, work.length, work.tile) for ref in (k_ref, v_ref))
        allowed = _allowed(work, pairs, pair, first_query, first_key, segments)
        _, gradients = _weights_and_gradients(q, k, v, do, logsum, shift, allowed)
        return dq + plgpu.dot(gradients.astype(k.dtype), k)

    start = jnp.zeros((work.tile, work.head_dim), jnp.float32)
    dq = jax.lax.fori_loop(*_pairs_of(pairs, query_tile), add_keys, start)
    gpu_tiles.store(dq_ref, first_query, work.length, work.tile, dq)


def _key_gradients(
    q_ref, k_ref, v_ref, segments, pairs, do_ref, logsum_ref, shift_ref, dk_ref, dv_ref, *, work: _Work
):  # fmt: skip
    key_tile = pl.program_id(0)
    first_key = key_tile * work.tile
    k, v = (gpu_tiles.rows(ref, first_key, work.length, work.tile) for ref in (k_ref, v_ref))

    def add_queries(pair, carry):
        dk, dv = carry
        first_query = plgpu.load(pairs.other.at[pair]) * work.tile
        q, do, logsum, shift = (
            gpu_tiles.rows(ref, first_query, work.length, work.tile) for ref in (q_ref, do_ref, logsum_ref, shift_ref)
        )
        allowed = _allowed(work, pairs, pair, first_query, first_key, segments)
        weights, gradients = _weights_and_gradients(q, k, v, do, logsum, shift, allowed)
        dk += plgpu.dot(gradients.astype(q.dtype).T, q)
        return dk, dv + plgpu.dot(weights.astype(do.dtype).T, do)

    start = (jnp.zeros((work.tile, work.head_dim), jnp.float32),) * 2
    dk, dv = jax.lax.fori_loop(*_pairs_of(pairs, key_tile), add_queries, start)
    gpu_tiles.store(dk_ref, first_key, work.length, work.tile, dk)
    gpu_tiles.store(dv_ref, first_key, work.length, work.tile, dv)


# ------------------------------------------------------ calls -----------------------------------------------------


def _call(kernel: Any, work: _Work, pairs: TilePairs, others, out_specs, out_shape) -> Any:
    """A call of a kernel with q, k, v, segments, the list, and arrays of the specs `others`."""
    array = _array(work)
    of_segments = pl.BlockSpec((None, work.length), lambda _, row, head: (row, 0))

    def of_list(x: Array) -> pl.BlockSpec:
        return pl.BlockSpec(
            (None, *x.shape[1:]), lambda _, row, head: (head if len(x) > 1 else 0, *(0,) * (x.ndim - 1))
        )

    other = pairs.queries if kernel is _key_gradients else pairs.keys
    given = _List(jnp.asarray(pairs.starts), jnp.asarray(other), pairs.bits(work.tile)[:, 0])
    call = pl.pallas_call(
        functools.partial(kernel, work=work),
        grid=(work.tiles, work.batch, work.heads),
        in_specs=[array, array, array, of_segments, _List(*map(of_list, given)), *others],
        out_specs=out_specs,
        out_shape=out_shape,
        compiler_params=plgpu.CompilerParams(num_warps=4 if work.head_dim <= 64 else 8, num_stages=2),
        interpret=work.interpret,
        name=f"block_attention{kernel.__name__}",
    )
    return lambda q, k, v, segments, *others: call(q, k, v, segments, given, *others)


def _array(work: _Work) -> pl.BlockSpec:
    """Of `[batch, length, heads, head_dim]`: a row of a head."""
    return pl.BlockSpec((None, work.length, None, work.head_dim), lambda _, row, head: (row, 0, head, 0))


def _per_query(work: _Work) -> pl.BlockSpec:
    """Of float32 `[batch, heads, length]`."""
    return pl.BlockSpec((None, None, work.length), lambda _, row, head: (row, head, 0))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(work: _Work, q: Array, k: Array, v: Array, segments: Array) -> Array:
    return _attend_forward(work, q, k, v, segments)[0]


def _attend_forward(work: _Work, q: Array, k: Array, v: Array, segments: Array):
    numbers = jax.ShapeDtypeStruct((work.batch, work.heads, work.length), jnp.float32)
    out_specs = [_array(work), _per_query(work)]
    o, logsum = _call(_forward, work, work.pairs(by_keys=False), [], out_specs, [q, numbers])(q, k, v, segments)
    return o, (q, k, v, segments, o, logsum)


def _attend_backward(work: _Work, residuals: Any, do: Array):
    q, k, v, segments, o, logsum = residuals
    shift = jnp.einsum("bqhd,bqhd->bhq", do.astype(jnp.float32), o.astype(jnp.float32))
    inputs = (q, k, v, segments, do, logsum, shift)
    array, others = _array(work), [_array(work), _per_query(work), _per_query(work)]
    dq = _call(_query_gradients, work, work.pairs(by_keys=False), others, array, q)(*inputs)
    dk, dv = _call(_key_gradients, work, work.pairs(by_keys=True), others, [array] * 2, [k, v])(*inputs)
    return dq, dk, dv, None


_attend.defvjp(_attend_forward, _attend_backward)


def attention(
    query: Array,
    key: Array,
    value: Array,
    segments: Array,
    layout: Layout,
    *,
    tile: int = 64,
    interpret: bool = False,
) -> Array:
    """The values that each query attends to, `[batch, length, heads, head_dim]`.

    Args:
      query, key, value: `[batch, length, heads, head_dim]`, not divided by anything; head_dim is a power of 2.
      segments: int32 `[batch, length]`; a query looks at the keys of its own segment, in the blocks of the layout.
      layout: of blocks that `tile_pairs.fits`.
      tile: queries and keys that are computed together, a power of 2.
      interpret: compute on any device, slowly, what the kernels compute.
    """
    batch, length, heads, head_dim = query.shape
    return _attend(_Work(layout, batch, heads, length, head_dim, tile, interpret), query, key, value, segments)
