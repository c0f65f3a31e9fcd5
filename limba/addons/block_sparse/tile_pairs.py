"""Which tiles of queries and keys attention with a layout of blocks computes, as lists that kernels follow."""

import functools
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array

_BITS = 32


class Layout(Protocol):
    """Which blocks of a row see which; hashable, because kernels are compiled for it."""

    def __hash__(self) -> int: ...

    @property
    def block(self) -> int:
        """Tokens of a block."""
        ...

    @property
    def differs_by_head(self) -> bool: ...

    def num_blocks(self, length: int) -> int:
        """Of a row of `length` tokens."""
        ...

    def present(self, num_blocks: int) -> np.ndarray:
        """Bool `[heads or 1, queries, keys]`: whether a block of queries sees one of keys; each sees itself."""
        ...


class TilePairs(NamedTuple):
    """Pairs of a tile of queries and a tile of keys with something to see, int32.

    The first dim is groups of heads, one if all have the same layout. Groups with fewer pairs have the last one again,
    without flags.

    Attributes:
      queries, keys: `[groups, pairs]`: the tiles.
      flags: `[groups, pairs]`: bits of `FIRST` and others below.
      ends: `[groups, pairs]`: the query tile of this pair or of the next one that has `QUERY_ENDS`.
      starts: `[groups, tiles + 1]`: where the pairs of each tile begin, of queries or of keys as the list is sorted.
      seen: `[groups, group, blocks, tiles]`: which blocks of a key tile a block of queries sees; bit 0 is the first.
    """

    queries: np.ndarray
    keys: np.ndarray
    flags: np.ndarray
    ends: np.ndarray
    starts: np.ndarray
    seen: np.ndarray

    def bits(self, tile: int) -> Array:
        """Of each query of a pair, what its block sees of the key tile: `[groups, group, pairs, tile]`.

        Made on the device, behind a barrier: as a constant a program would have it for every layer.
        """
        groups, group, blocks, tiles = self.seen.shape
        per_tile = blocks // tiles
        of_queries = self.queries[:, None, :, None] * per_tile + np.arange(per_tile)
        which = np.arange(groups)[:, None, None, None], np.arange(group)[:, None, None]
        found = jax.lax.optimization_barrier(jnp.asarray(self.seen))[(*which, of_queries, self.keys[:, None, :, None])]
        return jnp.repeat(found, tile // per_tile, axis=-1)


# The first and the last pair of the tile that the list is sorted by; of a query tile, whatever the list is sorted by;
# and whether there is anything to compute.
FIRST, LAST, QUERY_BEGINS, QUERY_ENDS, COMPUTED = 1, 2, 4, 8, 16


def fits(block: int, tile: int) -> bool:
    """Whether tiles consist of whole blocks, as few as there are bits."""
    return tile % block == 0 and tile // block <= _BITS


@functools.cache
def tile_pairs(layout: Layout, length: int, tile: int, group: int = 1, *, by_keys: bool = False) -> TilePairs:
    """The pairs of a row, sorted by tiles of queries, or of keys.

    Args:
      group: heads that a kernel computes together.
    """
    per_tile = tile // layout.block
    tiles = -(-length // tile)
    present = layout.present(layout.num_blocks(length))
    missing = tiles * per_tile - present.shape[1]
    present = np.pad(present, [(0, 0), (0, missing), (0, missing)])
    heads = 1 if len(present) == 1 else group
    parts = present.reshape(-1, heads, tiles, per_tile, tiles, per_tile)
    seen: np.ndarray = np.any(parts, axis=(1, 3, 5))
    found = [_in_order(x, by_keys) for x in seen]
    most = max(len(queries) for queries, _ in found)
    padded = [tuple(np.pad(x, (0, most - len(x)), mode="edge") for x in pair) for pair in found]
    queries, keys = (np.array(x, np.int32) for x in zip(*padded, strict=True))
    counts = [len(x) for x, _ in found]
    flags = [_flags(*x, by_keys) for x in found]
    ends = [_next_end(x, of_group) for (x, _), of_group in zip(found, flags, strict=True)]
    starts = [np.searchsorted(x[1] if by_keys else x[0], np.arange(tiles + 1)) for x in found]
    weights = 1 << np.arange(per_tile, dtype=np.int64)
    blocks = (parts * weights).sum(-1).reshape(*parts.shape[:2], tiles * per_tile, tiles)
    return TilePairs(
        queries,
        keys,
        np.array([np.pad(x, (0, most - n)) for x, n in zip(flags, counts, strict=True)], np.int32),
        np.array([np.pad(x, (0, most - n), mode="edge") for x, n in zip(ends, counts, strict=True)], np.int32),
        np.array(starts, np.int32),
        blocks.astype(np.uint32).view(np.int32),
    )


def _in_order(seen: np.ndarray, by_keys: bool) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.nonzero(seen.T if by_keys else seen)
    return (second, first) if by_keys else (first, second)


def _flags(queries: np.ndarray, keys: np.ndarray, by_keys: bool) -> np.ndarray:
    own = keys if by_keys else queries
    changes = own[1:] != own[:-1]
    flags = np.full(len(own), COMPUTED)
    flags |= FIRST * np.append(True, changes) | LAST * np.append(changes, True)
    _, begins = np.unique(queries, return_index=True)
    _, from_end = np.unique(queries[::-1], return_index=True)
    flags[begins] |= QUERY_BEGINS
    flags[len(queries) - 1 - from_end] |= QUERY_ENDS
    return flags


def _next_end(queries: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """Of each pair, the query tile of the next one that has QUERY_ENDS."""
    (places,) = np.nonzero(flags & QUERY_ENDS)
    return queries[places][np.searchsorted(places, np.arange(len(queries)))]
