"""Attention of some rows of the batch after others, for CPUs.

The logits of all rows are memory that is written and read many times; those of some rows fit the processor's cache.
"""

import os
from collections.abc import Callable

import jax

Array = jax.Array

# Heads that are computed at once, for each core: with one alone the others would wait.
_HEADS_OF_A_CORE = 4
# Below this length a row's logits are few, and the loop costs more than it saves.
_SHORTEST = 256


def attend(
    attention: Callable[..., Array], query: Array, key: Array, value: Array, bias: Array | None, mask: Array | None
) -> Array:
    """`attention(query=…, key=…, value=…, bias=…, mask=…)`, whose backward pass computes the logits again.

    Args:
      attention: without dropout.
      query, key, value: `[batch, length, heads, kv]`; keys and values may have fewer heads.
      bias, mask: `[batch or 1, …]`.
    """
    batch, keys = key.shape[:2]
    rows = _rows_at_once(batch, query.shape[2], keys)
    asked = {"query": query, "key": key, "value": value, "bias": bias, "mask": mask}
    if rows == batch:
        return attention(**asked)
    parts = {name: x.reshape(-1, rows, *x.shape[1:]) for name, x in asked.items() if x is not None and len(x) == batch}
    shared = {name: x for name, x in asked.items() if name not in parts}
    attended = jax.lax.map(jax.checkpoint(lambda part: attention(**part, **shared)), parts)
    return attended.reshape(batch, *attended.shape[2:])


def _rows_at_once(batch: int, heads: int, keys: int) -> int:
    mesh = jax.sharding.get_abstract_mesh()
    if keys < _SHORTEST or not (mesh.empty or mesh.size == 1):
        return batch
    wanted = _HEADS_OF_A_CORE * (os.cpu_count() or 1) / heads
    return next((rows for rows in range(1, batch) if batch % rows == 0 and rows >= wanted), batch)
