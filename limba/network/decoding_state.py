"""What both ways of decoding work on: a step of the network, its cache, and rows of decodes side by side."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import flax.struct
import jax
import jax.numpy as jnp

Array = jax.Array
PyTree = Any

# Stands for "impossible". Finite, because scores are added to it; its value is part of beam search's numbers.
NEG_INF = -1.0e7

# Cache entries without a row for each decode: they have no batch dimension, or a row for each example. An index gets a
# batch dimension when a prompt has been prefilled.
_INDEX_ENTRIES = ("cache_index",)
_SHARED_ENTRIES = ("cached_bias", "position_embedder_index", "encoded_key", "encoded_value")
_KEYS = ("cached_key", "cached_value")


@flax.struct.dataclass
class DecodingState:
    """What one step of decoding may know."""

    cur_index: Array  # the position that is fed: a scalar in beam search, [rows] in sampling
    sequences: Array  # tokens so far, [rows, length], after the first 0
    cur_token: Array  # to feed, [rows, 1]
    cache: PyTree


# One step of the network: logits `[rows, vocab]` of the next token, and the new cache.
TokensToLogits = Callable[[DecodingState], tuple[Array, PyTree]]


def cache_map(fn: Callable[[Array], Array], cache: PyTree, apply_to_index: bool = False) -> PyTree:
    """Maps over the cache entries that have a batch dimension; indices only have one after a prefilled prompt."""

    def apply(path: tuple, entry: Array) -> Array:
        return entry if _name(path) in _skipped(apply_to_index) else fn(entry)

    return cast(Mapping, jax.tree_util.tree_map_with_path(apply, cache))


def _skipped(indices_have_rows: bool) -> tuple[str, ...]:
    return _SHARED_ENTRIES if indices_have_rows else _SHARED_ENTRIES + _INDEX_ENTRIES


def _name(path: tuple) -> str | None:
    return getattr(path[-1], "key", None)


def expand_to_beams(cache: PyTree, beams: int, offset: int, prefilled: bool) -> PyTree:
    """The cache of `beams` equal beams of each example, with the batch axis `offset`."""
    ours = _layers_with_beams(cache)

    def expand(path: tuple, entry: Array) -> Array:
        if path[:-1] in ours and _name(path) in _KEYS:
            return jnp.repeat(entry, beams, axis=-1)
        if _name(path) == "cached_by":
            own = jnp.arange(beams, dtype=entry.dtype)[:, None]
            return jnp.broadcast_to(own, (*entry.shape[:-2], beams, entry.shape[-1]))
        return entry if _name(path) in _skipped(prefilled) else flat_batch_beam_expand(entry, beams, offset)

    return jax.tree_util.tree_map_with_path(expand, cache)


def continue_beams(cache: PyTree, parents: Array, offset: int, prefilled: bool) -> PyTree:
    """The cache of beams that continue others of their example: the beams `parents` `[batch, beams]`.

    Layers of ours (see limba/network/attention.py) only note whose keys they see. Those of others are copied.
    """
    batch, beams = parents.shape
    rows = (jnp.arange(batch)[:, None] * beams + parents).reshape(-1)
    ours = _layers_with_beams(cache)

    def follow(path: tuple, entry: Array) -> Array:
        if _name(path) == "cached_by":
            return jnp.take_along_axis(entry, parents.reshape((1,) * offset + (batch, beams, 1)), axis=-2)
        if _name(path) in _skipped(prefilled) or (path[:-1] in ours and _name(path) in _KEYS):
            return entry
        return jnp.take(entry, rows, axis=offset)

    return jax.tree_util.tree_map_with_path(follow, cache)


def _layers_with_beams(cache: PyTree) -> set[tuple]:
    return {path[:-1] for path, _ in jax.tree_util.tree_leaves_with_path(cache) if _name(path) == "cached_by"}


def flat_batch_beam_expand(x: Array, beam_size: int, offset: int = 0) -> Array:
    """Repeats each example `beam_size` times, side by side, along the batch axis `offset`."""
    return jnp.repeat(x, beam_size, axis=offset)


def pick(x: Array, indices: Array) -> Array:
    """`x[b, indices[b, i]]`: entries along axis 1 of `[batch, beams, …]` for `[batch, count]` indices."""
    return jax.vmap(lambda row, i: row[i])(x, indices)
