"""From what is known by distance, key - query, to queries and keys."""

import jax
import jax.numpy as jnp

Array = jax.Array


def to_keys(by_distance: Array) -> Array:
    """`[…, queries, queries + keys - 1] -> […, queries, keys]`: row i keeps column j - i + queries - 1 as its column j.

    One reshape does it, because every row begins one column further left than the row before. A gather would have a
    scatter as its gradient.
    """
    queries, width = by_distance.shape[-2:]
    padded = jnp.pad(by_distance, [(0, 0)] * (by_distance.ndim - 1) + [(0, 1)])
    flat = padded.reshape(*by_distance.shape[:-2], -1)[..., queries - 1 : queries - 1 + queries * width]
    return flat.reshape(*by_distance.shape[:-2], queries, width)[..., : width - queries + 1]
