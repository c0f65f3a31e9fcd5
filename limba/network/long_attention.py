"""LongT5's attention in an encoder (arXiv:2112.07916): to a window, and to sums of blocks, which are the global tokens.

A row is cut into blocks of queries, each of which multiplies its own block of keys and the two beside it. So time and
memory grow with the length times the window; transient-global attention adds one key for each `global_block_size`.
"""

import functools
from typing import Any, Protocol

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from limba.network import config_checks, own_layers
from limba.network.attention import MultiHeadDotProductAttention
from limba.network.attention_weights import attention_weights
from limba.network.kernels import attention as fused
from limba.network.kernels import distances
from limba.network.layers import ResidualLayerNorm
from limba.network.products import einsum

Array = jax.Array

# Of T5Config, and in transformers' LongT5Config.
FIELDS = ("encoder_attention_type", "local_radius", "global_block_size")
FULL, LOCAL, TRANSIENT_GLOBAL = TYPES = ("full", "local", "transient-global")


class LongConfig(Protocol):
    """The fields of `t5.T5Config` that decide about it."""

    @property
    def encoder_attention_type(self) -> str: ...

    @property
    def local_radius(self) -> int: ...

    @property
    def global_block_size(self) -> int: ...


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


def check_network(config: Any) -> None:
    """Raises ValueError for fields of a `T5Config` that have no meaning, or exclude each other."""
    kind = config.encoder_attention_type
    config_checks.choice("T5Config", "encoder_attention_type", kind, TYPES)
    for field in ("local_radius", "global_block_size"):
        config_checks.whole_number("T5Config", field, getattr(config, field), 1)
    if (size := config.global_block_size) & (size - 1):
        raise ValueError(
            f"T5Config.global_block_size is {size}; use a power of 2. transformers counts blocks by sums of 1 / size, "
            "which are exact for these."
        )
    if kind == FULL:
        return
    for field in ("relative_bias_per_layer", "gemma_layers", own_layers.FIELDS[0]):
        if given := getattr(config, field):
            raise ValueError(
                f"T5Config.encoder_attention_type is {kind!r} and {field} {given!r}; LongT5 has one table of positions "
                "a stack and an attention of its own. Leave out one of the two."
            )
    if config.num_encoder_layers == 0:
        raise ValueError(f"T5Config.encoder_attention_type is {kind!r}, and the network has no encoder; leave it out.")


def visible(config: LongConfig, tokens: Array, segments: Array | None) -> LongVisible:
    """What tokens of the inputs see, of `[batch, length]`: 0 is padding; None as segments is one a row."""
    segments = (tokens > 0).astype(jnp.int32) * (1 if segments is None else segments)
    if config.encoder_attention_type == LOCAL:
        return LongVisible(segments)
    size, length = config.global_block_size, segments.shape[1]
    places, num_blocks = jnp.arange(length), _num_blocks(config, length)
    begins, ends = _begins(segments), _begins(segments[:, ::-1])[:, ::-1]
    first = jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
    ends_block = ((places - first) % size == size - 1) & (segments > 0)
    ended = jnp.cumsum(ends_block, axis=1)
    # A block that its segment does not end is the one before; without one, its number is that of another segment's.
    of_segment = jax.lax.cummin(jnp.where(ends, ended, length), axis=1, reverse=True)
    blocks = jnp.clip(jnp.minimum(ended - ends_block, of_segment - 1), 0, num_blocks - 1)
    is_last = ends_block[..., None] & (blocks[..., None] == jnp.arange(num_blocks))
    return LongVisible(segments, blocks, jnp.max(jnp.where(is_last, segments[..., None], 0), axis=1))


def _num_blocks(config: LongConfig, length: int) -> int:
    """How many a row has at most; one that is masked where it has none."""
    return max(1, length // config.global_block_size)


def _begins(segments: Array) -> Array:
    """Whether a position is the first of its segment."""
    return segments != jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)


def _reach(radius: int, length: int) -> int:
    """How many tokens of a row of `length` a query sees to each side: blocks are as long, whatever a radius says."""
    return min(radius, length)


def bias(config: LongConfig, length: int, tokens: Any, blocks: Any) -> LongBias:
    """The tables of a row of `length`; `tokens` and `blocks` make the modules of relative positions."""
    width = 2 * (_reach(config.local_radius, length) + 1)
    of_tokens = tokens()(width, width, by_distance=True).table
    if config.encoder_attention_type == LOCAL:
        return LongBias(of_tokens)
    count = _num_blocks(config, length)
    return LongBias(of_tokens, blocks()(count, count, by_distance=True).table)


class LongAttention(MultiHeadDotProductAttention):
    """See the module. Parameters are those of `MultiHeadDotProductAttention`, and flaxformer's norm of the sums.

    Attributes:
      radius: how many tokens a query sees to each side.
      block_size: tokens of a sum.
    """

    radius: int = 127
    block_size: int = 16

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
        if mask.blocks is not None:
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
        if mask.blocks is not None:
            of_sums = einsum("bnqhd,bghd->bnhqg", queries, key[:, length:], of_weights, jnp.float32)
            of_sums += _block_bias(bias.blocks, in_blocks(mask.blocks), radius // self.block_size + 2, dtype)
            of_same = segments[..., None] == mask.block_segments[:, None, None]
            logits, seen = jnp.concatenate([logits, of_sums], -1), jnp.concatenate([seen, of_same], -1)
        weights = attention_weights(logits, seen[:, :, None], of_weights).astype(dtype)
        values = _around(in_blocks(value[:, :length]))
        attended = einsum("bnhqk,bnkhd->bnqhd", weights[..., : 3 * width], values, dtype)
        if mask.blocks is not None:
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
