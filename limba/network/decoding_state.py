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

# Cache entries that have no batch dimension. An index gets one when a prompt has been prefilled.
_INDEX_ENTRIES = ("cache_index",)
_SHARED_ENTRIES = ("cached_bias", "position_embedder_index")


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
    skipped = _SHARED_ENTRIES if apply_to_index else _SHARED_ENTRIES + _INDEX_ENTRIES

    def apply(path: tuple, entry: Array) -> Array:
        return entry if getattr(path[-1], "key", None) in skipped else fn(entry)

    return cast(Mapping, jax.tree_util.tree_map_with_path(apply, cache))


def flat_batch_beam_expand(x: Array, beam_size: int, offset: int = 0) -> Array:
    """Repeats each example `beam_size` times, side by side, along the batch axis `offset`."""
    return jnp.repeat(x, beam_size, axis=offset)


def pick(x: Array, indices: Array) -> Array:
    """`x[b, indices[b, i]]`: entries along axis 1 of `[batch, beams, …]` for `[batch, count]` indices."""
    return jax.vmap(lambda row, i: row[i])(x, indices)
