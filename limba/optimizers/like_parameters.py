"""Parameters that are alike: traced once, or computed as one array.

A T5 has two hundred parameters of eight shapes, and tracing takes a millisecond for each of them.
"""

import collections
import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp


def traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function(key, *arguments)`, traced once for a key and the shapes of its arguments, which are trees of arrays.

    Its operations become those of the program around it, as if it had been traced there each time.
    """
    return jax.jit(function, static_argnums=0, inline=True)


def map_alike(
    function: Callable[..., Any], keys: Mapping[str, Hashable], arguments: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """`function(key, *arguments)` of each name; those of one key in one call, over a new first axis.

    On a device that starts each program by itself these are fewer and larger programs.

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
