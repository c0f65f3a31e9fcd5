"""Parameters that are alike, as one array: fewer and larger programs on a device that starts each by itself."""

import collections
import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp


def map_alike(
    function: Callable[..., Any], keys: Mapping[str, Hashable], arguments: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """`function(key, *arguments)` of each name; those of one key in one call, over a new first axis.

    Args:
      arguments: trees of arrays, which have the same shapes where keys are equal.
    """
    alike: dict[Hashable, list[str]] = collections.defaultdict(list)
    for name, key in keys.items():
        alike[key].append(name)
    results: dict[str, Any] = {}
    for key, names in alike.items():
        if len(names) == 1:
            results[names[0]] = function(key, *arguments[names[0]])
            continue
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *(arguments[name] for name in names))
        of_all = jax.vmap(lambda *parts, key=key: function(key, *parts))(*stacked)
        for number, name in enumerate(names):
            results[name] = jax.tree.map(operator.itemgetter(number), of_all)
    return results
