"""Attention with a layout of blocks on TPUs, in Pallas: only tiles with something to see are computed.

As `attention_tpu`, without a bias; a grid's last axis is the list of `tile_pairs`, which the chip reads ahead. Logits
of a tile are `[keys, queries]`, so what a query sees is one number a column: a bit for each block of keys.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from limba.addons.block_sparse import tile_pairs
from limba.addons.block_sparse.tile_pairs import COMPUTED, FIRST, LAST, QUERY_BEGINS, QUERY_ENDS, Layout, TilePairs
from limba.network.kernels import tpu_tiles

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class _Work:
    """What the kernels are compiled for.

    Attributes:
      length: of a row.
      group: heads of a block.
      tile: queries and keys of a tile.
      precision: of products, for `jax.lax.dot_general`.
    """

    layout: Layout
    batch: int
    heads: int
    length: int
    head_dim: int
    group: int
    tile: int
    precision: Any
    interpret: bool

    @property
    def lanes(self) -> int:
        """Of a block."""
        return self.group * self.head_dim

    @property
    def tiles(self) -> int:
        return pl.cdiv(self.length, self.tile)

    def pairs(self, by_keys: bool) -> TilePairs:
        return tile_pairs.tile_pairs(self.layout, self.length, self.tile, self.group, by_keys=by_keys)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Lists:
    """What the chip reads ahead of `TilePairs`."""

    queries: Any
    keys: Any
    flags: Any
    ends: Any

    def group(self) -> Array | int:
        """Whose list it is."""
        return pl.program_id(0) if self.queries.shape[0] > 1 else 0


# ------------------------------------------------------ kernels ----------------------------------------------------


def _allowed(
    work: _Work, first_query: Array, first_key: Array, q_segments: Any, k_segments: Any, bits_ref: Any
) -> list[Array]:
    """Which logits of a tile count, `[keys, queries]` of each head."""
    key, query = (jax.lax.broadcasted_iota(jnp.int32, (work.tile, work.tile), dim) for dim in (0, 1))
    of_row = (first_query + query < work.length) & (first_key + key < work.length)
    of_row &= tpu_tiles.upright(k_segments[...]) == q_segments[...]
    block = jax.lax.div(key, work.layout.block)  # `//` asks the device for the sign of numbers
    found = [of_row & ((bits_ref[own : own + 1, :] >> block) & 1 != 0) for own in range(bits_ref.shape[0])]
    return found * (work.group // len(found))


def _forward(
    lists, q_ref, k_ref, v_ref, q_segments, k_segments, bits_ref, o_ref, logsum_ref, total_ref, highest_ref, sums_ref,
    *, work: _Work,
):  # fmt: skip
    group, pair = lists.group(), pl.program_id(2)
    flags = lists.flags[group, pair]
    first_query, first_key = (tiles[group, pair] * work.tile for tiles in (lists.queries, lists.keys))

    @pl.when(flags & FIRST != 0)
    def start():
        total_ref[...] = jnp.zeros_like(total_ref)
        highest_ref[...] = jnp.full_like(highest_ref, tpu_tiles.MASKED)
        sums_ref[...] = jnp.zeros_like(sums_ref)

    @pl.when(flags & COMPUTED != 0)
    def add_keys():
        q = tpu_tiles.rows(q_ref, first_query, work.length)
        k, v = (tpu_tiles.rows(ref, first_key, work.length) for ref in (k_ref, v_ref))
        allowed = _allowed(work, first_query, first_key, q_segments, k_segments, bits_ref)
        added, shrinks = jnp.zeros(total_ref.shape, jnp.float32), []
        for head in range(work.group):
            own, at = tpu_tiles.of_head(work, head, k.dtype), slice(head, head + 1)
            logits = jnp.where(allowed[head], tpu_tiles.dot(work, k * own, q, (1, 1)), tpu_tiles.MASKED)
            before = highest_ref[at, :]
            highest = jnp.maximum(before, jnp.max(logits, axis=0, keepdims=True))
            weights = jnp.where(allowed[head], jnp.exp(logits - highest), 0.0)
            shrinks.append(jnp.exp(before - highest))
            added += tpu_tiles.dot(work, weights.astype(v.dtype), v * own, (0, 0))
            sums_ref[at, :] = sums_ref[at, :] * shrinks[-1] + jnp.sum(weights, axis=0, keepdims=True)
            highest_ref[at, :] = highest
        total_ref[...] = total_ref[...] * tpu_tiles.by_lane(work, shrinks) + added

    @pl.when(flags & LAST != 0)
    def finish():
        sums = jnp.where(sums_ref[...] > 0.0, sums_ref[...], 1.0)
        by_lane = tpu_tiles.by_lane(work, [sums[head : head + 1] for head in range(work.group)])
        o_ref[...] = (total_ref[...] / by_lane).astype(o_ref.dtype)
        logsum_ref[...] = highest_ref[...] + jnp.log(sums)


def _backward(
    lists, q_ref, k_ref, v_ref, q_segments, k_segments, bits_ref, o_ref, do_ref, logsum_ref, dq_ref, dk_ref, dv_ref,
    dq_sums, dk_sums, dv_sums, *, work: _Work,
):  # fmt: skip
    group, pair = lists.group(), pl.program_id(2)
    flags, query_tile = lists.flags[group, pair], lists.queries[group, pair]
    first_query, first_key = query_tile * work.tile, lists.keys[group, pair] * work.tile

    @pl.when(flags & FIRST != 0)
    def start_keys():
        dk_sums[...] = jnp.zeros_like(dk_sums)
        dv_sums[...] = jnp.zeros_like(dv_sums)

    @pl.when(flags & QUERY_BEGINS != 0)
    def start_queries():
        dq_sums[query_tile] = jnp.zeros(dq_sums.shape[1:], dq_sums.dtype)

    @pl.when(flags & COMPUTED != 0)
    def add_tile():
        q, o, do = (tpu_tiles.rows(ref, first_query, work.length) for ref in (q_ref, o_ref, do_ref))
        k, v = (tpu_tiles.rows(ref, first_key, work.length) for ref in (k_ref, v_ref))
        allowed = _allowed(work, first_query, first_key, q_segments, k_segments, bits_ref)
        products = do.astype(jnp.float32) * o.astype(jnp.float32)
        for head in range(work.group):
            own, at = tpu_tiles.of_head(work, head, k.dtype), slice(head, head + 1)
            k_own = k * own
            logits = tpu_tiles.dot(work, k_own, q, (1, 1))
            weights = jnp.where(allowed[head], jnp.exp(logits - logsum_ref[at, :]), 0.0)
            of_head = tpu_tiles.of_head(work, head, jnp.float32)
            shift = tpu_tiles.flat(jnp.sum(products * of_head, axis=1, keepdims=True))
            gradients = weights * (tpu_tiles.dot(work, v * own, do, (1, 1)) - shift)
            narrow = gradients.astype(q.dtype)
            dv_sums[...] += tpu_tiles.dot(work, weights.astype(do.dtype), do * own, (1, 0))
            dk_sums[...] += tpu_tiles.dot(work, narrow, q * own, (1, 0))
            dq_sums[query_tile] += tpu_tiles.dot(work, narrow, k_own, (0, 0))

    @pl.when(flags & LAST != 0)
    def finish_keys():
        dk_ref[...] = dk_sums[...].astype(dk_ref.dtype)
        dv_ref[...] = dv_sums[...].astype(dv_ref.dtype)

    @pl.when(flags & QUERY_ENDS != 0)
    def finish_queries():
        dq_ref[...] = dq_sums[query_tile].astype(dq_ref.dtype)


# ------------------------------------------------------- calls -----------------------------------------------------


class _Blocks:
    """Blocks of a grid `(groups of heads, batch, pairs)`, of the tile that a list names."""

    def __init__(self, work: _Work):
        self._work = work

    def array(self, name: str) -> pl.BlockSpec:
        """Of `[batch, length, heads x head_dim]`."""
        at = self._place(name)
        return pl.BlockSpec((None, self._work.tile, self._work.lanes), lambda *x: (x[1], at(*x), x[0]))

    def segments(self, name: str) -> pl.BlockSpec:
        """Of `[batch, 1, length]`."""
        at = self._place(name)
        return pl.BlockSpec((None, 1, self._work.tile), lambda *x: (x[1], 0, at(*x)))

    def by_head(self) -> pl.BlockSpec:
        """Of `[batch, groups, group, length]`."""
        at = self._place("queries")
        return pl.BlockSpec((None, None, self._work.group, self._work.tile), lambda *x: (x[1], x[0], 0, at(*x)))

    def bits(self, pairs: TilePairs) -> pl.BlockSpec:
        """Of `[groups, pairs, group, tile]`."""
        groups, group = pairs.seen.shape[:2]
        shape = (None, None, group, self._work.tile)
        return pl.BlockSpec(shape, lambda *x: (x[0] if groups > 1 else 0, x[2], 0, 0))

    def inputs(self, pairs: TilePairs) -> list[pl.BlockSpec]:
        of_keys = [self.array("keys")] * 2
        return [self.array("queries"), *of_keys, self.segments("queries"), self.segments("keys"), self.bits(pairs)]

    def _place(self, name: str) -> Any:
        def place(group: Any, _: Any, pair: Any, lists: _Lists) -> Any:
            tiles = getattr(lists, name)
            return tiles[group if tiles.shape[0] > 1 else 0, pair]

        return place


def _call(kernel: Any, work: _Work, pairs: TilePairs, in_specs, out_specs, out_shape, scratch, in_order) -> Any:
    """A call of a kernel with what it reads ahead and `bits`.

    Args:
      in_order: axes of the grid that must be run one after another.
    """
    lists = _Lists(*(jnp.asarray(x) for x in (pairs.queries, pairs.keys, pairs.flags, pairs.ends)))
    grid = (work.heads // work.group, work.batch, pairs.queries.shape[1])
    semantics = [pltpu.ARBITRARY if axis in in_order else pltpu.PARALLEL for axis in range(3)]
    call = pl.pallas_call(
        functools.partial(kernel, work=work),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=in_specs,
            out_specs=out_specs,
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        ),
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(dimension_semantics=tuple(semantics)),
        interpret=work.interpret,
        name=f"block_attention{kernel.__name__}",
    )
    return functools.partial(call, lists)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(work: _Work, q: Array, k: Array, v: Array, segments: Array) -> Array:
    return _attend_forward(work, q, k, v, segments)[0]


def _attend_forward(work: _Work, q: Array, k: Array, v: Array, segments: Array):
    blocks, pairs = _Blocks(work), work.pairs(by_keys=False)
    numbers = (work.batch, work.heads // work.group, work.group, work.length)
    o, logsum = _call(
        _forward,
        work,
        pairs,
        blocks.inputs(pairs),
        [blocks.array("queries"), blocks.by_head()],
        [jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(numbers, jnp.float32)],
        [(work.tile, work.lanes), *[(work.group, work.tile)] * 2],
        in_order=(2,),
    )(q, k, v, segments, segments, _bits(work, pairs))
    return o, (q, k, v, segments, o, logsum)


def _attend_backward(work: _Work, residuals: Any, do: Array):
    q, k, v, segments, o, logsum = residuals
    blocks, pairs = _Blocks(work), work.pairs(by_keys=True)
    of_queries = blocks.array("queries")
    gradients = _call(
        _backward,
        work,
        pairs,
        [*blocks.inputs(pairs), of_queries, of_queries, blocks.by_head()],
        # A tile of dq stays in place until it is whole.
        [blocks.array("ends"), *[blocks.array("keys")] * 2],
        [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)],
        [(work.tiles, work.tile, work.lanes), *[(work.tile, work.lanes)] * 2],
        in_order=(2,),
    )(q, k, v, segments, segments, _bits(work, pairs), o, do, logsum)
    return *gradients, None


def _bits(work: _Work, pairs: TilePairs) -> Array:
    """`[groups, pairs, group, tile]`."""
    return jnp.swapaxes(pairs.bits(work.tile), 1, 2)


_attend.defvjp(_attend_forward, _attend_backward)


def attention(
    query: Array,
    key: Array,
    value: Array,
    segments: Array,
    layout: Layout,
    *,
    tile: int = tpu_tiles.LANES,
    interpret: bool = False,
) -> Array:
    """What `block_attention_gpu.attention` computes, with the same arguments.

    Args:
      tile: a multiple of 128.
    """
    batch, length, heads, head_dim = query.shape
    exact = jax.lax.Precision.HIGHEST if query.dtype == jnp.float32 else None
    group = tpu_tiles.group_of(heads, head_dim)
    work = _Work(layout, batch, heads, length, head_dim, group, tile, exact, interpret)
    joined = (x.reshape(*x.shape[:2], heads * head_dim) for x in (query, key, value))
    return _attend(work, *joined, segments[:, None, :]).reshape(query.shape)
