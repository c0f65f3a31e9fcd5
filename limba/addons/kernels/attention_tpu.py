"""Fused attention with T5's bias on TPUs, in Pallas: nothing of the size queries x keys is in memory.

Arrays are `[batch, length, heads x head_dim]`, as products make them. A kernel has the heads of 128 lanes at a time,
two of 64, and multiplies all lanes, with zeros for the other heads, which costs a TPU nothing. A tile of logits is
`[keys, queries]`, so that sums over keys are over sublanes. The bias of a tile is one row of a table by distance,
rolled once more for every key; its gradient is rolled back and added to that row over the whole batch, since a TPU runs
the tiles of one head one after another. The forward pass keeps a running maximum and sum (arXiv:2205.14135); the
backward pass computes the weights again.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from limba.network.kernels import tpu_tiles

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class _Work:
    """What the kernels are compiled for.

    Attributes:
      queries, keys: lengths of a row.
      group: heads of a block.
      query_block, key_block: of a tile.
      precision: of products, for `jax.lax.dot_general`.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    group: int
    causal: bool
    query_block: int
    key_block: int
    precision: Any
    interpret: bool

    @property
    def lanes(self) -> int:
        """Of a block."""
        return self.group * self.head_dim

    @property
    def query_blocks(self) -> int:
        return pl.cdiv(self.queries, self.query_block)

    @property
    def key_blocks(self) -> int:
        return pl.cdiv(self.keys, self.key_block)

    @property
    def distances(self) -> int:
        """Of a table that covers all tiles."""
        return self.query_blocks * self.query_block + self.key_blocks * self.key_block


# ------------------------------------------------------- tiles -----------------------------------------------------


def _first_distance(work: _Work, query_block: Array, key_block: Array) -> Array:
    """Where a tile's distances begin in the table that `_spread` makes."""
    first = query_block * work.query_block - key_block * work.key_block + (work.key_blocks - 1) * work.key_block
    return pl.multiple_of(first, tpu_tiles.LANES)


def _spread(work: _Work, table: Array) -> Array:
    """`[heads, queries + keys - 1]` as `[groups, group, distances]`, from the longest distance back."""
    before = work.key_blocks * work.key_block - work.keys
    after = work.distances - before - table.shape[1]
    return jnp.pad(table[:, ::-1], ((0, 0), (before, after))).reshape(-1, work.group, work.distances)


def _bias(work: _Work, table_ref: Any, head: int, query_block: Array, key_block: Array) -> Array:
    width = work.query_block + work.key_block
    row = table_ref[head : head + 1, pl.ds(_first_distance(work, query_block, key_block), width)]
    # Key i, query j: element j - i + key_block - 1 of the row. It is rolled one bit of i at a time: `pltpu.roll` has
    # strides for this, but not on v4, and they are no less work.
    rows = pltpu.roll(row, width - (work.key_block - 1), 1)
    while (count := rows.shape[0]) < work.key_block:
        rows = jnp.concatenate([rows, pltpu.roll(rows, count, 1)], axis=0)
    return rows[:, : work.query_block]


def _sum_by_distance(work: _Work, tile: Array) -> Array:
    """Sums of the elements that `_bias` gives one number: `[1, query_block + key_block]`."""
    width = work.query_block + work.key_block
    rows = jnp.concatenate([tile, jnp.zeros((work.key_block, work.key_block), tile.dtype)], axis=1)
    # Row i moves right by key_block - 1 - i: one bit of it at a time, for all rows without that bit.
    while (count := rows.shape[0]) > 1:
        rows = pltpu.roll(rows[: count // 2], count // 2, 1) + rows[count // 2 :]
    return rows.reshape(1, width)


def _allowed(work: _Work, refs: "_Inputs", query_block: Array, key_block: Array) -> Array:
    """Which logits of a tile count, `[key_block, query_block]`."""
    shape = (work.key_block, work.query_block)
    of_keys = key_block * work.key_block + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    of_queries = query_block * work.query_block + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    allowed = tpu_tiles.upright(refs.key_segments[...]) == refs.query_segments[...]
    allowed &= (of_keys < work.keys) & (of_queries < work.queries)
    if work.causal:
        not_after = of_keys <= of_queries
        if refs.query_prefix is not None:
            not_after |= (tpu_tiles.upright(refs.key_prefix[...]) > 0) & (refs.query_prefix[...] > 0)
        allowed &= not_after
    return allowed


def _logits(work: _Work, q: Array, k: Array, refs: "_Inputs", head: int, query_block: Array, key_block: Array) -> Array:
    """Logits of a head's tile in float32, `[key_block, query_block]`; k is zero in the lanes of other heads."""
    logits = tpu_tiles.dot(work, k, q, (1, 1))
    return logits if refs.table is None else logits + _bias(work, refs.table, head, query_block, key_block)


# ------------------------------------------------------ kernels ----------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Inputs:
    """Arrays, their blocks, or references to those.

    Attributes:
      q, k, v: `[batch, length, heads x head_dim]`; a kernel sees `[block, lanes]`.
      table: float32 `[groups, group, distances]`, of `_spread`; `[group, distances]`.
      query_segments, key_segments: int32 `[batch, 1, length]`; `[1, block]`.
      query_prefix, key_prefix: the same once more, of causal attention with a prefix.
    """

    q: Any
    k: Any
    v: Any
    table: Any
    query_segments: Any
    key_segments: Any
    query_prefix: Any
    key_prefix: Any


def _is_needed(work: _Work, has_prefix: bool, query_block: Array, key_block: Array) -> Array | bool:
    """Whether a tile has a key that is not after all of its queries."""
    if not work.causal or has_prefix:
        return key_block >= 0
    return key_block * work.key_block < (query_block + 1) * work.query_block


def _forward(refs: _Inputs, o_ref, logsum_ref, total_ref, highest_ref, sums_ref, *, work: _Work):
    query_block, key_block = pl.program_id(2), pl.program_id(3)

    @pl.when(key_block == 0)
    def start():
        total_ref[...] = jnp.zeros_like(total_ref)
        highest_ref[...] = jnp.full_like(highest_ref, tpu_tiles.MASKED)
        sums_ref[...] = jnp.zeros_like(sums_ref)

    @pl.when(_is_needed(work, refs.query_prefix is not None, query_block, key_block))
    def add_keys():
        q = tpu_tiles.rows(refs.q, query_block * work.query_block, work.queries)
        k, v = (tpu_tiles.rows(ref, key_block * work.key_block, work.keys) for ref in (refs.k, refs.v))
        allowed = _allowed(work, refs, query_block, key_block)
        added, shrinks = jnp.zeros(total_ref.shape, jnp.float32), []
        for head in range(work.group):
            own, at = tpu_tiles.of_head(work, head, k.dtype), slice(head, head + 1)
            logits = jnp.where(allowed, _logits(work, q, k * own, refs, head, query_block, key_block), tpu_tiles.MASKED)
            before = highest_ref[at, :]
            highest = jnp.maximum(before, jnp.max(logits, axis=0, keepdims=True))
            weights = jnp.where(allowed, jnp.exp(logits - highest), 0.0)
            shrinks.append(jnp.exp(before - highest))
            added += tpu_tiles.dot(work, weights.astype(v.dtype), v * own, (0, 0))
            sums_ref[at, :] = sums_ref[at, :] * shrinks[-1] + jnp.sum(weights, axis=0, keepdims=True)
            highest_ref[at, :] = highest
        total_ref[...] = total_ref[...] * tpu_tiles.by_lane(work, shrinks) + added

    @pl.when(key_block == work.key_blocks - 1)
    def finish():
        sums = jnp.where(sums_ref[...] > 0.0, sums_ref[...], 1.0)
        by_lane = tpu_tiles.by_lane(work, [sums[head : head + 1] for head in range(work.group)])
        o_ref[...] = (total_ref[...] / by_lane).astype(o_ref.dtype)
        logsum_ref[...] = highest_ref[...] + jnp.log(sums)


def _backward(
    refs: _Inputs, o_ref, do_ref, logsum_ref, dq_ref, dk_ref, dv_ref, dtable_ref, dq_sums, dk_sums, dv_sums,
    *, work: _Work,
):  # fmt: skip
    row, key_block, query_block = pl.program_id(1), pl.program_id(2), pl.program_id(3)

    @pl.when(query_block == 0)
    def start_keys():
        dk_sums[...] = jnp.zeros_like(dk_sums)
        dv_sums[...] = jnp.zeros_like(dv_sums)

    @pl.when(key_block == 0)
    def start_queries():
        dq_sums[query_block] = jnp.zeros(dq_sums.shape[1:], dq_sums.dtype)

    if dtable_ref is not None:

        @pl.when((row == 0) & (key_block == 0) & (query_block == 0))
        def start_table():
            dtable_ref[...] = jnp.zeros_like(dtable_ref)

    @pl.when(_is_needed(work, refs.query_prefix is not None, query_block, key_block))
    def add_tile():
        first_query = query_block * work.query_block
        q, o, do = (tpu_tiles.rows(ref, first_query, work.queries) for ref in (refs.q, o_ref, do_ref))
        k, v = (tpu_tiles.rows(ref, key_block * work.key_block, work.keys) for ref in (refs.k, refs.v))
        allowed = _allowed(work, refs, query_block, key_block)
        products = do.astype(jnp.float32) * o.astype(jnp.float32)
        for head in range(work.group):
            own, at = tpu_tiles.of_head(work, head, k.dtype), slice(head, head + 1)
            k_own = k * own
            logits = _logits(work, q, k_own, refs, head, query_block, key_block)
            weights = jnp.where(allowed, jnp.exp(logits - logsum_ref[at, :]), 0.0)
            shift = tpu_tiles.flat(
                jnp.sum(products * tpu_tiles.of_head(work, head, jnp.float32), axis=1, keepdims=True)
            )
            gradients = weights * (tpu_tiles.dot(work, v * own, do, (1, 1)) - shift)
            narrow = gradients.astype(q.dtype)
            dv_sums[...] += tpu_tiles.dot(work, weights.astype(do.dtype), do * own, (1, 0))
            dk_sums[...] += tpu_tiles.dot(work, narrow, q * own, (1, 0))
            dq_sums[query_block] += tpu_tiles.dot(work, narrow, k_own, (0, 0))
            if dtable_ref is not None:
                width = work.query_block + work.key_block
                place = pl.ds(_first_distance(work, query_block, key_block), width)
                dtable_ref[at, place] += _sum_by_distance(work, gradients)

    @pl.when(query_block == work.query_blocks - 1)
    def finish_keys():
        dk_ref[...] = dk_sums[...].astype(dk_ref.dtype)
        dv_ref[...] = dv_sums[...].astype(dv_ref.dtype)

    @pl.when(key_block == work.key_blocks - 1)
    def finish_queries():
        dq_ref[...] = dq_sums[query_block].astype(dq_ref.dtype)


# ------------------------------------------------------- calls -----------------------------------------------------


class _Blocks:
    """Blocks of a grid `(groups, batch, …)`, by the indices of a tile's queries and keys in it."""

    def __init__(self, work: _Work, queries_are: int):
        self._work = work
        self._queries_are = queries_are  # the axis of the grid, 2 or 3

    def _place(self, indices: tuple[Any, ...], of_queries: bool) -> Any:
        return indices[self._queries_are] if of_queries else indices[5 - self._queries_are]

    def array(self, of_queries: bool) -> pl.BlockSpec:
        """Of `[batch, length, heads x head_dim]`."""
        block = self._work.query_block if of_queries else self._work.key_block
        return pl.BlockSpec((None, block, self._work.lanes), lambda *at: (at[1], self._place(at, of_queries), at[0]))

    def numbers(self, of_queries: bool) -> pl.BlockSpec:
        """Of `[batch, 1, length]`."""
        block = self._work.query_block if of_queries else self._work.key_block
        return pl.BlockSpec((None, 1, block), lambda *at: (at[1], 0, self._place(at, of_queries)))

    def by_head(self) -> pl.BlockSpec:
        """Of `[batch, groups, group, queries]`."""
        shape = (None, None, self._work.group, self._work.query_block)
        return pl.BlockSpec(shape, lambda *at: (at[1], at[0], 0, self._place(at, True)))

    def table(self) -> pl.BlockSpec:
        return pl.BlockSpec((None, self._work.group, self._work.distances), lambda *at: (at[0], 0, 0))

    def inputs(self, inputs: _Inputs) -> _Inputs:
        has_prefix = inputs.query_prefix is not None
        return _Inputs(
            self.array(True),
            self.array(False),
            self.array(False),
            None if inputs.table is None else self.table(),
            self.numbers(True),
            self.numbers(False),
            self.numbers(True) if has_prefix else None,
            self.numbers(False) if has_prefix else None,
        )


def _call(kernel: Any, work: _Work, grid: tuple[int, ...], in_specs, out_specs, out_shape, scratch, in_order) -> Any:
    """A call of a kernel.

    Args:
      in_order: axes of the grid that must be run one after another.
    """
    semantics = [pltpu.ARBITRARY if axis in in_order else pltpu.PARALLEL for axis in range(len(grid))]
    return pl.pallas_call(
        functools.partial(kernel, work=work),
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=out_shape,
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
        compiler_params=pltpu.CompilerParams(dimension_semantics=tuple(semantics)),
        interpret=work.interpret,
        name=f"attention{kernel.__name__}",
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(work: _Work, inputs: _Inputs) -> Array:
    return _attend_forward(work, inputs)[0]


def _attend_forward(work: _Work, inputs: _Inputs):
    blocks = _Blocks(work, queries_are=2)
    groups = work.heads // work.group
    numbers = jax.ShapeDtypeStruct((work.batch, groups, work.group, work.queries), jnp.float32)
    o, logsum = _call(
        _forward,
        work,
        (groups, work.batch, work.query_blocks, work.key_blocks),
        [blocks.inputs(inputs)],
        [blocks.array(True), blocks.by_head()],
        [jax.ShapeDtypeStruct(inputs.q.shape, inputs.q.dtype), numbers],
        [(work.query_block, work.lanes), *[(work.group, work.query_block)] * 2],
        in_order=(3,),
    )(inputs)
    return o, (inputs, o, logsum)


def _attend_backward(work: _Work, residuals: Any, do: Array):
    inputs, o, logsum = residuals
    blocks = _Blocks(work, queries_are=3)
    by_query = blocks.array(True)
    groups = work.heads // work.group

    def of_gradient(*at: Any) -> Any:
        """Of dq, which is whole with the last block of keys; before it the block stays where it is."""
        return at[1], jnp.where(at[2] == work.key_blocks - 1, at[3], 0), at[0]

    arrays = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (inputs.q, inputs.k, inputs.v)]
    has_table = inputs.table is not None
    dq, dk, dv, *dtable = _call(
        _backward if has_table else functools.wraps(_backward)(_without_table),
        work,
        (groups, work.batch, work.key_blocks, work.query_blocks),
        [blocks.inputs(inputs), by_query, by_query, blocks.by_head()],
        [pl.BlockSpec((None, work.query_block, work.lanes), of_gradient), *[blocks.array(False)] * 2]
        + [blocks.table()] * has_table,
        arrays + [jax.ShapeDtypeStruct((groups, work.group, work.distances), jnp.float32)] * has_table,
        [(work.query_blocks, work.query_block, work.lanes), *[(work.key_block, work.lanes)] * 2],
        in_order=(1, 2, 3),
    )(inputs, o, do, logsum)
    nothing = (None,) * 4
    return (_Inputs(dq, dk, dv, dtable[0] if has_table else None, *nothing),)


def _without_table(inputs, o_ref, do_ref, logsum_ref, dq_ref, dk_ref, dv_ref, *sums, work):
    _backward(inputs, o_ref, do_ref, logsum_ref, dq_ref, dk_ref, dv_ref, None, *sums, work=work)


_attend.defvjp(_attend_forward, _attend_backward)


def attention(
    query: Array,
    key: Array,
    value: Array,
    table: Array | None,
    segments: tuple[Array, Array],
    prefix: Array | None = None,
    *,
    causal: bool = False,
    block: int | None = None,
    interpret: bool = False,
) -> Array:
    """What `attention_gpu.attention` computes, with the same arguments.

    Args:
      block: most queries and keys of a tile, a power of 2 and a multiple of 128; None chooses.
    """
    batch, queries, heads, head_dim = query.shape
    keys = key.shape[1]
    exact = jax.lax.Precision.HIGHEST if query.dtype == jnp.float32 else None
    # The gradients of all queries stay in fast memory, of which v4 has 16 MiB: 8 of them for 16,384 queries.
    most = block or (512 if queries <= 4096 else 256)
    blocks = (_block(queries, most), _block(keys, most))
    work = _Work(
        batch, heads, queries, keys, head_dim, tpu_tiles.group_of(heads, head_dim), causal, *blocks, exact, interpret
    )
    q, k, v = (x.reshape(*x.shape[:2], heads * head_dim) for x in (query, key, value))
    of_queries, of_keys = (x[:, None, :] for x in segments)
    in_prefix = None if prefix is None else prefix.astype(jnp.int32)[:, None, :]
    of_table = None if table is None else _spread(work, table.astype(jnp.float32))
    o = _attend(work, _Inputs(q, k, v, of_table, of_queries, of_keys, in_prefix, in_prefix))
    return o.reshape(query.shape)


def _block(length: int, most: int) -> int:
    """The smallest power of 2 lanes that covers a length, or `most`."""
    return min(most, max(tpu_tiles.LANES, 1 << (length - 1).bit_length()))
