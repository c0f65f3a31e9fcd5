"""Attention in which a block of queries sees some blocks of keys, in time and memory that grow with these.

Global blocks of queries see the whole row: dense attention of a few queries. Each of the others has as many columns of
keys: the global blocks, those of its window and the random ones. The window is slices of the row, each shifted by a
block, and only random columns are gathered: the gradient of a gather is a scatter, which is slow on accelerators. A
column outside of the row, or of a block that is seen already, is masked.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from limba.addons.block_sparse import block_attention
from limba.addons.block_sparse.block_layout import BigBirdSparsityConfig, BlockLayout
from limba.files.untrusted_files import shown
from limba.network import attention, products
from limba.network.attention_weights import attention_weights
from limba.network.encoders import relative_keys
from limba.network.encoders.config import EncoderConfig
from limba.network.kernels import distances

Array = jax.Array


@flax.struct.dataclass
class VisibleBlocks:
    """What each query may look at: keys of its own segment, in the blocks that the layout gives it.

    Attributes:
      segments: int32 `[batch, length]`; padding is 0, a segment of its own.
    """

    segments: Array
    layout: BlockLayout = flax.struct.field(pytree_node=False)


@flax.struct.dataclass
class ByDistance:
    """What is added to logits, by key - query from -(length - 1) on: the dim `distances` is 2 * length - 1.

    Attributes:
      bias: T5's, `[heads, distances]`.
      relative_keys: `[distances, kv]`, for products with queries and perhaps keys.
    """

    bias: Array | None = None
    relative_keys: Array | None = None


# ------------------------------------------- what the core asks, by the table of add-ons -----------------------------


def of_json(fields: Mapping[str, Any]) -> BigBirdSparsityConfig:
    """The value of `EncoderConfig.sparse_attention` that `run.json` has. Raises TypeError for an unknown field."""
    return BigBirdSparsityConfig(**fields)


def of_deepspeed(name: Any, fields: Mapping[str, Any]) -> BigBirdSparsityConfig:
    """The same of a config.json of t5-experiments: the name of DeepSpeed's class, and its fields.

    Raises:
      ValueError: for another class, or a field that this one does not have.
    """
    if str(name).rpartition(":")[2] != BigBirdSparsityConfig.__name__:
        raise ValueError(f"sparse_config_cls is {shown(name)}; Limba has {BigBirdSparsityConfig.__name__}")
    known = {field.name for field in dataclasses.fields(BigBirdSparsityConfig)}
    if unknown := sorted(fields.keys() - known):
        raise ValueError(f"sparse_attention has {shown(unknown[0])}; {BigBirdSparsityConfig.__name__} has none")
    return BigBirdSparsityConfig(**fields)


def check(sparse: Any, num_heads: int, longest_row: int) -> None:
    """Raises ValueError unless it is a layout that a network with such heads and rows can have."""
    if not isinstance(sparse, BigBirdSparsityConfig):
        raise ValueError(
            f"EncoderConfig.sparse_attention is {sparse!r}; give a block_layout.BigBirdSparsityConfig, or None."
        )
    sparse.check_network(num_heads, longest_row)


def seen_keys(config: EncoderConfig, length: int) -> float:
    """Keys that a query of a row of this length is multiplied by, on average."""
    blocks = layout_of(config)
    return float(blocks.present(blocks.num_blocks(length)).mean()) * length


def visible(config: EncoderConfig, segments: Array) -> VisibleBlocks:
    """What each token sees, of the row's segments `[batch, length]`; 0 is padding."""
    return VisibleBlocks(segments, layout_of(config))


def layout_of(config: EncoderConfig) -> BlockLayout:
    """The layout of a network that has one."""
    assert config.sparse_attention is not None
    return BlockLayout(config.sparse_attention, config.num_heads, config.max_positions)


def attend(
    config: EncoderConfig,
    query: Array,
    key: Array,
    value: Array,
    visible: VisibleBlocks,
    bias: Array | None = None,
    relative_keys: Array | None = None,
) -> Array:
    """The values that each query attends to, `[batch, length, heads, kv]`, as the other arrays.

    Kernels of ours compute it where they serve; they know no numbers by distance. Otherwise the backward pass computes
    logits and weights again, so that nothing of their size is kept for it.

    Args:
      query: divided by sqrt(kv).
      visible: see the function of this name.
      bias, relative_keys: see `ByDistance`.
    """
    by_distance = ByDistance(bias, relative_keys)
    if bias is None and relative_keys is None and block_attention.is_fused(config, visible.layout, query.shape[1]):
        return block_attention.attend(query, key, value, visible.segments, visible.layout)
    num_global = visible.layout.config.num_global_blocks * visible.layout.config.block
    parts = [_global_rows] if num_global else []
    parts += [_other_rows] if num_global < query.shape[1] else []
    attended = [
        jax.checkpoint(functools.partial(part, config, visible.layout))(
            query, key, value, visible.segments, by_distance
        )
        for part in parts
    ]
    return jnp.concatenate(attended, axis=1)


def _global_rows(
    config: EncoderConfig,
    layout: BlockLayout,
    query: Array,
    key: Array,
    value: Array,
    segments: Array,
    by_distance: ByDistance,
) -> Array:
    """The queries of global blocks: `[batch, global, heads, kv]`."""
    length = query.shape[1]
    count = min(layout.config.num_global_blocks * layout.config.block, length)
    query, of_queries = query[:, :count], segments[:, :count]
    mask = attention.make_attention_mask(of_queries, segments, jnp.equal, dtype=bool)
    first = length - count  # The last of these queries is nearer to the first key than that of a whole row.
    added: Array | None = None
    if by_distance.bias is not None:
        table = by_distance.bias[:, None, first:]
        added = distances.to_keys(jnp.repeat(table, count, axis=1))[None].astype(config.attention_weights_dtype)
    if by_distance.relative_keys is not None:
        added = relative_keys.relative_key_logits(config, query, key, by_distance.relative_keys[first:])
    return attention.dot_product_attention(
        query,
        key,
        value,
        added,
        deterministic=True,  # dropped values stand for dropped weights
        dtype=config.dtype,
        float32_logits=config.float32_attention_logits,
        mask=mask,
    )


def _other_rows(
    config: EncoderConfig,
    layout: BlockLayout,
    query: Array,
    key: Array,
    value: Array,
    segments: Array,
    by_distance: ByDistance,
) -> Array:
    """The queries after the global blocks: `[batch, length - global, heads, kv]`."""
    length, block = query.shape[1], layout.config.block
    columns = _Columns(layout, layout.num_blocks(length))
    in_blocks = functools.partial(_in_blocks, block=block, num_blocks=columns.num_blocks)
    queries, of_queries = (in_blocks(x)[:, :, columns.first :] for x in (query, segments[:, :, None]))
    keys, values, of_keys = (columns.of_row(in_blocks(x)) for x in (key, value, segments[:, :, None]))
    of_keys = jnp.where(columns.is_new[..., None], of_keys, 0)  # as padding: no real query sees it
    mask = of_queries[..., :, None] == _joined(of_keys, 3)[..., None, :]
    dtype = config.attention_weights_dtype
    logits = products.einsum("bhnqd,bhnkd->bhnqk", queries, _joined(keys, 3), dtype, jnp.float32)
    if by_distance.bias is not None:
        table = _windows(by_distance.bias, columns.num_blocks, block)
        table = distances.to_keys(jnp.repeat(table[:, :, None], block, axis=2))
        bias = jnp.moveaxis(columns.of_distances(table), 2, 3)  # [heads, blocks, block, columns, block]
        logits += jnp.broadcast_to(_joined(bias, 3).astype(dtype), logits.shape).astype(logits.dtype)
    if by_distance.relative_keys is not None:
        table = columns.of_distances(_windows(by_distance.relative_keys[None], columns.num_blocks, block))
        logits += _relative_key_logits(config, queries, keys, table)
    weights = attention_weights(logits, mask, dtype).astype(config.dtype)
    attended = products.einsum("bhnqk,bhnkd->bhnqd", weights, _joined(values, 3), config.dtype)
    return jnp.swapaxes(_joined(attended, 2), 1, 2)[:, : length - columns.first * block]


def _in_blocks(x: Array, block: int, num_blocks: int) -> Array:
    """`[batch, length, heads, …] -> [batch, heads, blocks, block, …]`, with zeros up to a whole block."""
    x = jnp.pad(x, [(0, 0), (0, num_blocks * block - x.shape[1])] + [(0, 0)] * (x.ndim - 2))
    x = jnp.swapaxes(x, 1, 2)
    return x.reshape(*x.shape[:2], num_blocks, block, *x.shape[3:])


def _joined(x: Array, axis: int) -> Array:
    """Makes one dim of `axis` and the next."""
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def _windows(table: Array, num_blocks: int, block: int) -> Array:
    """`[heads, distances, …] -> [heads, 2 * blocks - 1, 2 * block - 1, …]`: the distances within each pair of blocks.

    By block of the key - block of the query, from -(blocks - 1) on. Distances of a row that ends with a block are 0
    where those of the row itself end.
    """
    missing = num_blocks * block - (table.shape[1] + 1) // 2
    table = jnp.pad(table, [(0, 0), (missing, missing + 1)] + [(0, 0)] * (table.ndim - 2))
    table = table.reshape(table.shape[0], 2 * num_blocks, block, *table.shape[2:])
    return jnp.concatenate([table[:, :-1], table[:, 1:, :-1]], axis=2)


def _relative_key_logits(config: EncoderConfig, queries: Array, keys: Array, table: Array) -> Array:
    """As `relative_keys.relative_key_logits`: `[batch, heads, blocks, block, columns * block]`.

    Args:
      queries: `[batch, heads, blocks, block, kv]`.
      keys: `[batch, heads, blocks, columns, block, kv]`.
      table: `[heads, blocks, columns, 2 * block - 1, kv]`.
    """
    dtype = config.attention_weights_dtype
    of_heads, table = ("", table[0]) if table.shape[0] == 1 else ("h", table)
    logits = distances.to_keys(products.einsum(f"bhnqd,{of_heads}ncrd->bhncqr", queries, table, dtype, jnp.float32))
    if config.position_embedding_type == "relative_key_query":
        keys = keys / jnp.sqrt(config.head_dim).astype(config.dtype)
        of_keys = products.einsum(f"bhnckd,{of_heads}ncrd->bhnckr", keys, jnp.flip(table, -2), dtype, jnp.float32)
        logits += jnp.swapaxes(distances.to_keys(of_keys), -1, -2)
    return _joined(jnp.moveaxis(logits, 3, 4), 4)


class _Columns:
    """Which block of keys each column of a block of queries is.

    Arrays `[heads, …]` have one head where all heads are alike.

    Attributes:
      first: the first block of queries that is not global.
      is_new: bool `[heads, blocks, columns]`: a block of the row that no column before it is.
    """

    def __init__(self, layout: BlockLayout, num_blocks: int):
        self.num_blocks = num_blocks
        self.first = layout.config.num_global_blocks
        self._side = layout.config.num_sliding_window_blocks // 2
        rows = np.arange(self.first, num_blocks)
        drawn = layout.random_blocks(num_blocks)[:, self.first :]
        self._drawn = np.minimum(drawn, num_blocks - 1)
        self._distances = self._drawn - rows[:, None] + num_blocks - 1
        window = rows[:, None] + np.arange(-self._side, self._side + 1)
        of_random = (drawn < num_blocks) & ~layout.without_random(num_blocks)[rows[:, None], self._drawn]
        of_window = (window >= self.first) & (window < num_blocks)
        of_all = np.pad(of_window, [(0, 0), (self.first, 0)], constant_values=True)
        self.is_new = np.concatenate([np.tile(of_all, (len(drawn), 1, 1)), of_random], axis=2)

    def of_row(self, blocks: Array) -> Array:
        """`[batch, heads, all blocks, …] -> [batch, heads, blocks, columns, …]`."""
        return jax.vmap(self._of_row)(blocks)

    def _of_row(self, blocks: Array) -> Array:
        rows = self.num_blocks - self.first
        padded = jnp.pad(blocks, [(0, 0), (self._side, self._side)] + [(0, 0)] * (blocks.ndim - 2))
        return self._join(
            [blocks[:, i : i + 1] for i in range(self.first)]
            + [padded[:, self.first + i :][:, :rows] for i in range(2 * self._side + 1)],
            _take(blocks, self._drawn),
        )

    def of_distances(self, table: Array) -> Array:
        """`[heads, 2 * all blocks - 1, …] -> [heads, blocks, columns, …]`; see `_windows`."""
        rows, zero = self.num_blocks - self.first, self.num_blocks - 1
        return self._join(
            [jnp.flip(table[:, i : i + rows], 1) for i in range(self.first)]
            # A window wider than the row has columns that are masked: any distance will do.
            + [table[:, max(0, min(zero + i, 2 * zero))][:, None] for i in range(-self._side, self._side + 1)],
            _take(table, self._distances),
        )

    def _join(self, columns: list[Array], drawn: Array) -> Array:
        """Columns `[heads, blocks or 1, …]`, and the drawn ones, which have a dim for them already."""
        shape = drawn.shape[:2]
        given = [jnp.broadcast_to(x, (*shape, *x.shape[2:]))[:, :, None] for x in columns]
        return jnp.concatenate([*given, drawn], axis=2)


def _take(blocks: Array, numbers: np.ndarray) -> Array:
    """`[heads, all blocks, …] -> [heads, blocks, random, …]`: the blocks of these numbers, of each head its own."""
    if len(numbers) == 1:
        return blocks[:, numbers[0]]
    if blocks.shape[0] == 1:
        return blocks[0][numbers]
    return jax.vmap(lambda of_head, chosen: of_head[chosen])(blocks, numbers)
