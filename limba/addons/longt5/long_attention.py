"""LongT5's attention in an encoder (arXiv:2112.07916): to a window, and to sums of blocks, which are the global tokens.

A row is cut into blocks of queries, each of which multiplies its own block of keys and the two beside it. So time and
memory grow with the length times the window; transient-global attention adds one key for each `global_block_size`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from limba.network.attention import MultiHeadDotProductAttention
from limba.network.attention_weights import attention_weights
from limba.network.kernels import attention as fused
from limba.network.kernels import distances
from limba.network.layers import ResidualLayerNorm
from limba.network.products import einsum

Array = jax.Array

LOCAL, TRANSIENT_GLOBAL = "local", "transient-global"


@flax.struct.dataclass
class LongVisible:
    """What each query may look at: keys of its segment within `local_radius`, and the sums of its segment's blocks.

    As in flaxformer, blocks begin with their segment, and tokens behind its last whole block belong to that one. A
    segment shorter than a block has none.

    Attributes:
      segments: int32 `[batch, length]`; padding is 0.
      blocks: int32 `[batch, length]`, the number of a token's block in its row, which never falls; None without sums.
      block_segments: int32 `[batch, blocks]`; 0 for a block that the row does not have.
    """

    segments: Array
    blocks: Any = None
    block_segments: Any = None


@flax.struct.dataclass
class LongBias:
    """The tables of relative positions by distance, float32 `[heads, distances]`: of tokens and of blocks."""

    tokens: Array
    blocks: Any = None


@dataclasses.dataclass(frozen=True)
class LongEncoderAttention:
    """What the encoder asks; see `limba.network.t5.EncoderAttention`.

    Attributes:
      radius: how many tokens a query sees to each side.
      block_size: tokens of a sum; None without sums.
    """

    radius: int
    block_size: int | None

    @property
    def window(self) -> int:
        """Tokens that a token sees beside the sums, itself included."""
        return 2 * self.radius + 1

    def seen_keys(self, length: int) -> float:
        """Those of three blocks, and of each sum of a row."""
        return float(3 * (self.radius + 1) + (length // self.block_size if self.block_size else 0))

    def visible(self, tokens: Array, segments: Array | None) -> LongVisible:
        """What tokens of the inputs see, of `[batch, length]`: 0 is padding; None as segments is one a row."""
        segments = (tokens > 0).astype(jnp.int32) * (1 if segments is None else segments)
        if self.block_size is None:
            return LongVisible(segments)
        size, length = self.block_size, segments.shape[1]
        places, num_blocks = jnp.arange(length), self._num_blocks(length)
        begins, ends = _begins(segments), _begins(segments[:, ::-1])[:, ::-1]
        first = jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
        ends_block = ((places - first) % size == size - 1) & (segments > 0)
        ended = jnp.cumsum(ends_block, axis=1)
        # A block that its segment does not end is the one before; without one, its number is that of another segment's.
        of_segment = jax.lax.cummin(jnp.where(ends, ended, length), axis=1, reverse=True)
        blocks = jnp.clip(jnp.minimum(ended - ends_block, of_segment - 1), 0, num_blocks - 1)
        is_last = ends_block[..., None] & (blocks[..., None] == jnp.arange(num_blocks))
        return LongVisible(segments, blocks, jnp.max(jnp.where(is_last, segments[..., None], 0), axis=1))

    def bias(self, length: int, biases: Callable[..., Any]) -> LongBias:
        """The tables of a row of `length`; `biases` makes a module of relative positions."""
        width = 2 * (_reach(self.radius, length) + 1)
        of_tokens = biases(name="relpos_bias")(width, width, by_distance=True).table
        if self.block_size is None:
            return LongBias(of_tokens)
        count = self._num_blocks(length)
        return LongBias(of_tokens, biases(name="side_relpos_bias")(count, count, by_distance=True).table)

    def module(self, **fields: Any) -> "LongAttention":
        """The attention of a layer, with the fields of `MultiHeadDotProductAttention`."""
        return LongAttention(radius=self.radius, block_size=self.block_size, **fields)

    def _num_blocks(self, length: int) -> int:
        """How many a row has at most; one that is masked where it has none."""
        assert self.block_size is not None
        return max(1, length // self.block_size)


def _begins(segments: Array) -> Array:
    """Whether a position is the first of its segment."""
    return segments != jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)


def _reach(radius: int, length: int) -> int:
    """How many tokens of a row of `length` a query sees to each side: blocks are as long, whatever a radius says."""
    return min(radius, length)


class LongAttention(MultiHeadDotProductAttention):
    """See the module. Parameters are those of `MultiHeadDotProductAttention`, and flaxformer's norm of the sums.

    Attributes:
      radius: how many tokens a query sees to each side.
      block_size: tokens of a sum; None without sums.
    """

    radius: int = 127
    block_size: int | None = None

    @nn.compact
    def __call__(  # type: ignore[override]
        self,
        inputs_q: Array,
        inputs_kv: Array,
        mask: LongVisible,
        bias: LongBias,
        *,
        deterministic: bool = False,
    ) -> Array:
        """Attends from `inputs_q` `[batch, length, embed]` to itself, which `inputs_kv` is too."""
        length = inputs_q.shape[1]
        asking = inputs_q / jnp.sqrt(self.head_dim).astype(self.dtype) if self.scale_logits else inputs_q
        query, keyed = self._project("query", asking), inputs_kv
        if self.block_size is not None:
            sums = _sums(inputs_kv, mask, self.dtype)
            _, sums = ResidualLayerNorm(dtype=self.dtype, kernels="xla", name="T5LayerNorm_0")(sums)
            keyed = jnp.concatenate([inputs_kv, sums], axis=1)  # A module has one call of each projection.
        key, value = self._project("key", keyed), self._project("value", keyed)
        if self.dropout_rate > 0.0 and not deterministic:
            value = fused.drop_values(value, self.make_rng("dropout"), self.dropout_rate)
        # The backward pass computes logits and weights again, so that nothing of their size is kept for it.
        attended = jax.checkpoint(self._attend)(query, key, value, mask, bias)
        return self._out(attended[:, :length], inputs_q.shape[-1])

    def _attend(self, query: Array, key: Array, value: Array, mask: LongVisible, bias: LongBias) -> Array:
        """`[batch, length up to a whole block, heads, kv]`; keys and values of sums stand behind those of tokens."""
        length, dtype = query.shape[1], self.dtype
        radius = _reach(self.radius, length)
        width = radius + 1
        in_blocks = functools.partial(_in_blocks, width=width)
        queries, keys = in_blocks(query), _around(in_blocks(key[:, :length]))
        of_weights = jnp.float32 if self.float32_logits else dtype
        segments = in_blocks(mask.segments)
        near = jnp.arange(3 * width) - width - jnp.arange(width)[:, None]
        seen = (segments[..., None] == _around(segments)[:, :, None]) & (jnp.abs(near) <= radius)
        logits = einsum("bnqhd,bnkhd->bnhqk", queries, keys, of_weights, jnp.float32)
        logits += distances.to_keys(jnp.repeat(bias.tokens[:, None], width, axis=1)).astype(dtype).astype(logits.dtype)
        if self.block_size is not None:
            of_sums = einsum("bnqhd,bghd->bnhqg", queries, key[:, length:], of_weights, jnp.float32)
            of_sums += _block_bias(bias.blocks, in_blocks(mask.blocks), radius // self.block_size + 2, dtype)
            of_same = segments[..., None] == mask.block_segments[:, None, None]
            logits, seen = jnp.concatenate([logits, of_sums], -1), jnp.concatenate([seen, of_same], -1)
        weights = attention_weights(logits, seen[:, :, None], of_weights).astype(dtype)
        values = _around(in_blocks(value[:, :length]))
        attended = einsum("bnhqk,bnkhd->bnqhd", weights[..., : 3 * width], values, dtype)
        if self.block_size is not None:
            attended += einsum("bnhqg,bghd->bnqhd", weights[..., 3 * width :], value[:, length:], dtype)
        return attended.reshape(query.shape[0], -1, *query.shape[2:])


def _sums(x: Array, mask: LongVisible, dtype: Any) -> Array:
    """`[batch, length, embed] -> [batch, blocks, embed]`."""
    is_in = mask.blocks[..., None] == jnp.arange(mask.block_segments.shape[1])
    is_in &= mask.segments[..., None] == mask.block_segments[:, None]
    return einsum("ble,blg->bge", x, is_in.astype(dtype), dtype)


def _block_bias(table: Array, blocks: Array, most: int, dtype: Any) -> Array:
    """What is added to the logits of sums, `[batch, blocks of queries, heads, width, blocks]`.

    The queries of a block are of few blocks that are summed, one behind another: their rows of the bias are gathered,
    and a product gives each query its own. To gather a row for each query has a slow gradient, a scatter.

    Args:
      table: float32 `[heads, distances]`.
      blocks: `[batch, blocks of queries, width]`, of each query.
      most: different ones in a block of queries.
    """
    count = (table.shape[1] + 1) // 2
    rows = distances.to_keys(jnp.repeat(table[:, None], count, axis=1)).astype(dtype)
    first = blocks[..., :1]
    rows = jnp.take(rows, first + jnp.arange(most), axis=1, mode="clip")  # [heads, batch, blocks of queries, most, …]
    chosen = jax.nn.one_hot(blocks - first, most, dtype=dtype)
    return einsum("bnqs,hbnsg->bnhqg", chosen, rows, dtype, jnp.float32)


def _in_blocks(x: Array, width: int) -> Array:
    """`[batch, length, …] -> [batch, blocks, width, …]`, with zeros up to a whole block."""
    x = jnp.pad(x, [(0, 0), (0, -x.shape[1] % width)] + [(0, 0)] * (x.ndim - 2))
    return x.reshape(x.shape[0], -1, width, *x.shape[2:])


def _around(x: Array) -> Array:
    """`[batch, blocks, width, …] -> [batch, blocks, 3 * width, …]`: each with the block before it and the one after."""
    padded = jnp.pad(x, [(0, 0), (1, 1)] + [(0, 0)] * (x.ndim - 2))
    return jnp.concatenate([padded[:, i : i + x.shape[1]] for i in range(3)], axis=2)
