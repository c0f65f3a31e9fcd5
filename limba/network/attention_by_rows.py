"""Attention of some rows of the batch after others, and of some queries of a long row after others, for CPUs.

The logits of all rows are memory that is written and read many times; those of some fit the processor's cache.
"""

import os
from collections.abc import Callable

import jax
import jax.numpy as jnp

Array = jax.Array

# Heads that are computed at once, for each core: with one alone the others would wait.
_HEADS_OF_A_CORE = 4
# Below this length a row's logits are few, and the loop costs more than it saves.
_SHORTEST = 256
# Logits that are computed at once for each core, 8 MiB of float32: above it the queries of a row are divided, too, but
# no further than to this number of them.
_LOGITS_OF_A_CORE = 2**21
_FEWEST_QUERIES = 64


def attend(
    attention: Callable[..., Array], query: Array, key: Array, value: Array, bias: Array | None, mask: Array | None
) -> Array:
    """`attention(query=…, key=…, value=…, bias=…, mask=…)`, whose backward pass computes the logits again.

    Args:
      attention: without dropout. What it makes of a query depends on no other query.
      query, key, value: `[batch, length, heads, kv]`; keys and values may have fewer heads.
      bias, mask: `[batch or 1, heads or 1, queries or 1, keys]`.
    """
    batch, keys = key.shape[:2]
    rows = _rows_at_once(batch, query.shape[2], keys)
    queries = _queries_at_once(rows, query.shape[1], query.shape[2], keys)
    given = {"query": query, "key": key, "value": value, "bias": bias, "mask": mask}
    asked = {name: x for name, x in given.items() if x is not None}

    def of_rows(part: dict[str, Array]) -> Array:
        return _of_queries(attention, queries, {"bias": None, "mask": None, **part})

    if rows == batch:
        return of_rows(asked)
    parts = {name: x.reshape(-1, rows, *x.shape[1:]) for name, x in asked.items() if len(x) == batch}
    shared = {name: x for name, x in asked.items() if name not in parts}
    of_part = lambda part: of_rows(part | shared)  # noqa: E731
    # Where queries are divided, these are what is computed again.
    attended = jax.lax.map(jax.checkpoint(of_part) if queries == query.shape[1] else of_part, parts)
    return attended.reshape(batch, *attended.shape[2:])


def _of_queries(attention: Callable[..., Array], at_once: int, given: dict[str, Array | None]) -> Array:
    """Attention of so many queries after others."""
    query = given["query"]
    assert query is not None
    length = query.shape[1]
    if at_once == length:
        return attention(**given)
    axes = {name: 1 if name == "query" else 2 for name in ("query", "bias", "mask")}
    divided = {
        name: jnp.moveaxis(x.reshape(*x.shape[:axis], -1, at_once, *x.shape[axis + 1 :]), axis, 0)
        for name, axis in axes.items()
        if (x := given[name]) is not None and x.shape[axis] == length
    }
    shared = {name: x for name, x in given.items() if name not in divided}
    attended = jax.lax.map(jax.checkpoint(lambda part: attention(**part, **shared)), divided)
    return jnp.moveaxis(attended, 0, 1).reshape(query.shape[0], length, *attended.shape[3:])


def _has_one_device() -> bool:
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.empty or mesh.size == 1


def _rows_at_once(batch: int, heads: int, keys: int) -> int:
    if keys < _SHORTEST or not _has_one_device():
        return batch
    wanted = _HEADS_OF_A_CORE * _cores() / heads
    return next((rows for rows in range(1, batch) if batch % rows == 0 and rows >= wanted), batch)


def _queries_at_once(rows: int, queries: int, heads: int, keys: int) -> int:
    most = _LOGITS_OF_A_CORE * _cores() // (rows * heads * keys)
    if queries <= most or not _has_one_device():
        return queries
    numbers = range(min(queries, max(_FEWEST_QUERIES, most)), _FEWEST_QUERIES - 1, -1)
    return next((number for number in numbers if queries % number == 0), queries)


def _cores() -> int:
    return os.cpu_count() or 1
