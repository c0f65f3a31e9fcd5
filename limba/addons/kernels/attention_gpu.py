"""Fused attention with T5's bias on GPUs, in Pallas by Triton: nothing of the size queries x keys is in memory.

The forward pass keeps a running maximum and sum of each query's row (arXiv:2205.14135), the backward pass computes
the weights again from the rows' log-sums. The bias of a tile is read from a table by distance. Its gradient has a pass
of its own: tiles on one diagonal have the same distances, so their gradients are added up over rows of the batch before
anything is written.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from limba.network.kernels import gpu_tiles

Array = jax.Array

# Programs that share the sum of a bias' gradient over the batch: enough of them to keep all cores of a card busy.
_GRADIENT_PROGRAMS = 1024


class Tiling(NamedTuple):
    """How a kernel is laid out on a card: queries and keys of a tile, and Triton's settings.

    `python -m benchmarks.kernels --tilings` times others on the card at hand.
    """

    block: int = 64
    num_warps: int = 4
    num_stages: int = 2


def _usual_tiling(head_dim: int) -> Tiling:
    return Tiling(num_warps=4 if head_dim <= 64 else 8)


@dataclasses.dataclass(frozen=True)
class _Work:
    """What the kernels are compiled for.

    Attributes:
      queries, keys: lengths of a row.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    head_dim: int
    causal: bool
    has_prefix: bool
    tiling: Tiling
    interpret: bool

    @property
    def block(self) -> int:
        """Queries and keys of a tile."""
        return self.tiling.block

    @property
    def skips(self) -> bool:
        """Whether blocks of keys after a block of queries count for nothing."""
        return self.causal and not self.has_prefix

    @property
    def query_blocks(self) -> int:
        return pl.cdiv(self.queries, self.block)

    @property
    def key_blocks(self) -> int:
        return pl.cdiv(self.keys, self.block)


class _Segments(NamedTuple):
    """int32 `[batch, length]`, or what a kernel sees of it."""

    queries: Any
    keys: Any
    prefix: Any  # None where it is causal all over


# ------------------------------------------------------ tiles -----------------------------------------------------


def _logits(
    work: _Work,
    q: Array,
    k: Array,
    first_query: Array,
    first_key: Array,
    table: Any,
    segments: Any,
    of_batch: tuple[Array, ...],
):  # fmt: skip
    """Logits of a tile `[block, block]` in float32, and which of them count."""
    rows, columns = first_query + jnp.arange(work.block), first_key + jnp.arange(work.block)
    logits = plgpu.dot(q, k.T)
    inside = (rows < work.queries)[:, None] & (columns < work.keys)[None, :]
    if table is not None:
        distance = columns[None, :] - rows[:, None] + work.queries - 1
        logits += plgpu.load(table.at[distance], mask=inside, other=0.0)
    of_queries = gpu_tiles.rows(segments.queries, first_query, work.queries, work.block, of_batch)
    of_keys = gpu_tiles.rows(segments.keys, first_key, work.keys, work.block, of_batch)
    allowed = inside & (of_queries[:, None] == of_keys[None, :])
    if work.causal:
        not_after = columns[None, :] <= rows[:, None]
        if segments.prefix is not None:
            query_in = gpu_tiles.rows(segments.prefix, first_query, work.queries, work.block, of_batch) > 0
            key_in = gpu_tiles.rows(segments.prefix, first_key, work.keys, work.block, of_batch) > 0
            not_after |= query_in[:, None] & key_in[None, :]
        allowed &= not_after
    return logits, allowed


def _key_blocks_of(work: _Work, query_block: Array) -> Array | int:
    """How many blocks of keys the queries of a block look at."""
    return jnp.minimum(query_block + 1, work.key_blocks) if work.skips else work.key_blocks


# ----------------------------------------------------- kernels ----------------------------------------------------
# References: q, k, v, o and their gradients [length, head_dim]; table [queries + keys - 1]; segments [length] of
# queries and of keys; log-sums and what is subtracted from the gradients of the weights [queries].


def _forward(q_ref, k_ref, v_ref, table, segments, o_ref, logsum_ref, *, work: _Work):
    query_block = pl.program_id(0)
    first_query = query_block * work.block
    q = gpu_tiles.rows(q_ref, first_query, work.queries, work.block)

    def add_keys(key_block, carry):
        total, highest, sums = carry
        first_key = key_block * work.block
        k = gpu_tiles.rows(k_ref, first_key, work.keys, work.block)
        v = gpu_tiles.rows(v_ref, first_key, work.keys, work.block)
        logits, allowed = _logits(work, q, k, first_query, first_key, table, segments, ())
        logits = jnp.where(allowed, logits, gpu_tiles.MASKED)
        new_highest = jnp.maximum(highest, jnp.max(logits, axis=1))
        weights = jnp.where(allowed, jnp.exp(logits - new_highest[:, None]), 0.0)
        shrink = jnp.exp(highest - new_highest)
        total = total * shrink[:, None] + plgpu.dot(weights.astype(v.dtype), v)
        return total, new_highest, sums * shrink + jnp.sum(weights, axis=1)

    start = (
        jnp.zeros((work.block, work.head_dim), jnp.float32),
        jnp.full((work.block,), gpu_tiles.MASKED, jnp.float32),
        jnp.zeros((work.block,), jnp.float32),
    )
    total, highest, sums = jax.lax.fori_loop(0, _key_blocks_of(work, query_block), add_keys, start)
    sums = jnp.where(sums > 0.0, sums, 1.0)
    gpu_tiles.store(o_ref, first_query, work.queries, work.block, total / sums[:, None])
    gpu_tiles.store(logsum_ref, first_query, work.queries, work.block, highest + jnp.log(sums))


def _weights_and_gradients(
    work, q, k, v, do, logsum, shift, first_query, first_key, table, segments, of_batch=()
):  # fmt: skip
    """Of a tile: the weights, and the gradient of the logits."""
    logits, allowed = _logits(work, q, k, first_query, first_key, table, segments, of_batch)
    weights = jnp.where(allowed, jnp.exp(logits - logsum[:, None]), 0.0)
    return weights, weights * (plgpu.dot(do, v.T) - shift[:, None])


def _query_gradients(
    q_ref, k_ref, v_ref, table, segments, do_ref, logsum_ref, o_ref, dq_ref, shift_ref, *, work: _Work
):  # fmt: skip
    query_block = pl.program_id(0)
    first_query = query_block * work.block
    q, do, logsum, o = (
        gpu_tiles.rows(ref, first_query, work.queries, work.block) for ref in (q_ref, do_ref, logsum_ref, o_ref)
    )
    shift = jnp.sum(do.astype(jnp.float32) * o.astype(jnp.float32), axis=1)
    gpu_tiles.store(shift_ref, first_query, work.queries, work.block, shift)

    def add_keys(key_block, dq):
        first_key = key_block * work.block
        k = gpu_tiles.rows(k_ref, first_key, work.keys, work.block)
        v = gpu_tiles.rows(v_ref, first_key, work.keys, work.block)
        parts = (q, k, v, do, logsum, shift, first_query, first_key, table, segments)
        _, gradients = _weights_and_gradients(work, *parts)
        return dq + plgpu.dot(gradients.astype(k.dtype), k)

    start = jnp.zeros((work.block, work.head_dim), jnp.float32)
    dq = jax.lax.fori_loop(0, _key_blocks_of(work, query_block), add_keys, start)
    gpu_tiles.store(dq_ref, first_query, work.queries, work.block, dq)


def _key_gradients(
    q_ref, k_ref, v_ref, table, segments, do_ref, logsum_ref, shift_ref, dk_ref, dv_ref, *, work: _Work
):  # fmt: skip
    key_block = pl.program_id(0)
    first_key = key_block * work.block
    k, v = (gpu_tiles.rows(ref, first_key, work.keys, work.block) for ref in (k_ref, v_ref))

    def add_queries(query_block, carry):
        dk, dv = carry
        first_query = query_block * work.block
        q, do, logsum, shift = (
            gpu_tiles.rows(ref, first_query, work.queries, work.block) for ref in (q_ref, do_ref, logsum_ref, shift_ref)
        )
        parts = (q, k, v, do, logsum, shift, first_query, first_key, table, segments)
        weights, gradients = _weights_and_gradients(work, *parts)
        dk += plgpu.dot(gradients.astype(q.dtype).T, q)
        return dk, dv + plgpu.dot(weights.astype(do.dtype).T, do)

    start = (jnp.zeros((work.block, work.head_dim), jnp.float32),) * 2
    first = key_block if work.skips else 0
    dk, dv = jax.lax.fori_loop(first, work.query_blocks, add_queries, start)
    gpu_tiles.store(dk_ref, first_key, work.keys, work.block, dk)
    gpu_tiles.store(dv_ref, first_key, work.keys, work.block, dv)


def _table_gradients(
    q_ref, k_ref, v_ref, table, segments, do_ref, logsum_ref, shift_ref, sums_ref, *, work: _Work, rows: int
):  # fmt: skip
    """Adds up the gradients of the logits of all tiles on one diagonal, over `rows` rows of the batch."""
    diagonal = pl.program_id(0) - (work.query_blocks - 1)  # key block - query block
    first = jnp.maximum(-diagonal, 0)
    last = jnp.minimum(work.query_blocks, work.key_blocks - diagonal)

    def add_row(row, sums):
        def add_tile(query_block, sums):
            first_query, first_key = query_block * work.block, (query_block + diagonal) * work.block
            q, do, logsum, shift = (
                gpu_tiles.rows(ref, first_query, work.queries, work.block, (row,))
                for ref in (q_ref, do_ref, logsum_ref, shift_ref)
            )
            k, v = (gpu_tiles.rows(ref, first_key, work.keys, work.block, (row,)) for ref in (k_ref, v_ref))
            parts = (q, k, v, do, logsum, shift, first_query, first_key, table, segments, (row,))
            return sums + _weights_and_gradients(work, *parts)[1]

        return jax.lax.fori_loop(first, last, add_tile, sums)

    start = jnp.zeros((work.block, work.block), jnp.float32)
    sums_ref[...] = jax.lax.fori_loop(0, rows, add_row, start)


# ------------------------------------------------------ calls -----------------------------------------------------


def _specs(work: _Work, table: Array | None, segments: _Segments, lengths: tuple[int, ...]):
    """Blocks of a row and head for arrays `[batch, length, heads, head_dim]` of these lengths, table and segments."""
    arrays = [
        pl.BlockSpec((None, length, None, work.head_dim), lambda _, row, head: (row, 0, head, 0)) for length in lengths
    ]
    of_table = None if table is None else pl.BlockSpec((None, table.shape[1]), lambda _, row, head: (head, 0))
    of_segments = _Segments(
        *(x if x is None else pl.BlockSpec((None, x.shape[1]), lambda _, row, head: (row, 0)) for x in segments)
    )
    return arrays, of_table, of_segments


def _call(kernel: Any, work: _Work, grid: tuple[int, ...], in_specs, out_specs, out_shape) -> Any:
    return pl.pallas_call(
        functools.partial(kernel, work=work),
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=out_shape,
        compiler_params=plgpu.CompilerParams(num_warps=work.tiling.num_warps, num_stages=work.tiling.num_stages),
        interpret=work.interpret,
        name=f"attention{kernel.__name__}",
    )


def _per_query(work: _Work) -> pl.BlockSpec:
    """Of float32 `[batch, heads, queries]`."""
    return pl.BlockSpec((None, None, work.queries), lambda _, row, head: (row, head, 0))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(work: _Work, q: Array, k: Array, v: Array, table: Array | None, segments: Any) -> Array:
    return _attend_forward(work, q, k, v, table, segments)[0]


def _attend_forward(work, q, k, v, table, segments):
    arrays, of_table, of_segments = _specs(work, table, segments, (work.queries, work.keys, work.keys))
    o, logsum = _call(
        _forward,
        work,
        (work.query_blocks, work.batch, work.heads),
        [*arrays, of_table, of_segments],
        [arrays[0], _per_query(work)],
        [q, jax.ShapeDtypeStruct((work.batch, work.heads, work.queries), jnp.float32)],
    )(q, k, v, table, segments)
    return o, (q, k, v, table, segments, o, logsum)


def _attend_backward(work, residuals, do):
    q, k, v, table, segments, o, logsum = residuals
    arrays, of_table, of_segments = _specs(work, table, segments, (work.queries, work.keys, work.keys))
    per_query = _per_query(work)
    in_specs = [*arrays, of_table, of_segments, arrays[0], per_query]
    by_row = (work.batch, work.heads)
    inputs = (q, k, v, table, segments, do, logsum)
    dq, shift = _call(
        _query_gradients,
        work,
        (work.query_blocks, *by_row),
        [*in_specs, arrays[0]],
        [arrays[0], per_query],
        [q, logsum],
    )(*inputs, o)
    in_specs = [*in_specs, per_query]
    dk, dv = _call(_key_gradients, work, (work.key_blocks, *by_row), in_specs, arrays[1:], [k, v])(*inputs, shift)
    return dq, dk, dv, _table_gradient(work, (*inputs, shift)) if table is not None else None, None


def _table_gradient(work: _Work, inputs: tuple[Any, ...]) -> Array:
    """`[heads, queries + keys - 1]`."""
    table, segments = inputs[3:5]
    diagonals = work.query_blocks + work.key_blocks - 1
    parts = math.gcd(work.batch, 2 ** max(0, (_GRADIENT_PROGRAMS // (diagonals * work.heads)).bit_length()))
    rows = work.batch // parts

    def array(length: int) -> pl.BlockSpec:
        return pl.BlockSpec((rows, length, None, work.head_dim), lambda _, part, head: (part, 0, head, 0))

    per_query = pl.BlockSpec((rows, None, work.queries), lambda _, part, head: (part, head, 0))
    of_segments = _Segments(
        *(x if x is None else pl.BlockSpec((rows, x.shape[1]), lambda _, part, head: (part, 0)) for x in segments)
    )
    lengths = (work.queries, work.keys, work.keys)
    of_table = pl.BlockSpec((None, table.shape[1]), lambda _, part, head: (head, 0))
    sums = _call(
        functools.wraps(_table_gradients)(functools.partial(_table_gradients, rows=rows)),
        work,
        (diagonals, parts, work.heads),
        [*map(array, lengths), of_table, of_segments, array(work.queries), per_query, per_query],
        pl.BlockSpec(
            (None, None, None, work.block, work.block), lambda diagonal, part, head: (part, head, diagonal, 0, 0)
        ),
        jax.ShapeDtypeStruct((parts, work.heads, diagonals, work.block, work.block), jnp.float32),
    )(*inputs)
    # A tile's distances: (diagonal - (query_blocks - 1)) * block + column - row + queries - 1.
    tiles = jnp.sum(sums, axis=0)
    within = _sum_diagonals(tiles)  # [heads, diagonals, 2 * block - 1], from distance -(block - 1) on
    size = (diagonals + 1) * work.block - 1
    total = jnp.zeros((work.heads, size), jnp.float32)
    for half in (0, 1):  # Neighbours overlap by half of their distances.
        part = (
            within[:, :, : work.block] if half == 0 else jnp.pad(within[:, :, work.block :], ((0, 0), (0, 0), (0, 1)))
        )
        flat = part.reshape(work.heads, diagonals * work.block)
        start = half * work.block
        total = total + jnp.pad(flat, ((0, 0), (start, work.block)))[:, :size]
    # total[i] is of distance i - query_blocks * block + 1, the table's [i] of distance i - (queries - 1).
    skip = work.query_blocks * work.block - work.queries
    return total[:, skip : skip + table.shape[1]].astype(table.dtype)


def _sum_diagonals(tiles: Array) -> Array:
    """Sums over elements with equal column - row, `[..., n, n] -> [..., 2 n - 1]`, from -(n - 1) on."""
    n = tiles.shape[-1]
    # Row r moves right by n - 1 - r: padded to a width of 2 n, read back with one column less.
    padded = jnp.pad(tiles[..., ::-1, :], [(0, 0)] * (tiles.ndim - 1) + [(0, n)])
    flat = padded.reshape(*tiles.shape[:-2], 2 * n * n)[..., : (2 * n - 1) * n]
    return jnp.sum(flat.reshape(*tiles.shape[:-2], n, 2 * n - 1), axis=-2)


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
    tiling: Tiling | None = None,
    interpret: bool = False,
) -> Array:
    """The values that each query attends to, `[batch, queries, heads, head_dim]`.

    Args:
      query: `[batch, queries, heads, head_dim]`, not divided by anything; head_dim is a power of 2.
      key, value: `[batch, keys, heads, head_dim]`.
      table: float32 `[heads, queries + keys - 1]`, the bias of distance key - query + queries - 1; None for no bias.
      segments: int32 `[batch, queries]` and `[batch, keys]`; a query looks at the keys of its own segment. Queries
        whose segment has no key get zeros.
      prefix: `[batch, queries]` of causal self-attention: positions of a positive value see each other.
      causal: a query looks at keys that do not come after it.
      tiling: its block is a power of 2; None takes what an H100 was measured with.
      interpret: compute on any device, slowly, what the kernels compute.
    """
    batch, queries, heads, head_dim = query.shape
    tiling = tiling or _usual_tiling(head_dim)
    work = _Work(batch, heads, queries, key.shape[1], head_dim, causal, prefix is not None, tiling, interpret)
    parts = _Segments(*segments, None if prefix is None else prefix.astype(jnp.int32))
    return _attend(work, query, key, value, table, parts)
