"""Training a part of the parameters, chosen by path: the others get no updates and have no optimizer state."""

import difflib
import functools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from flax import traverse_util

from limba.optimizers.definitions import MultiOptimizer

PyTree = Any


class PartialOptimizer(MultiOptimizer):
    """An optimizer for the parameters that match `trained` and not `frozen`.

    Expressions match the whole path, which begins with a slash, as those of `optimizers.match_any` do:
    `'/encoder/.*'`, `'.*/relpos_bias/rel_embedding'`. In a checkpoint the state has the names that `MultiOptimizer`
    gives it.

    Args:
      optimizer: a definition, or a transformation of optax.
      trained: expressions for the parameters that are trained.
      frozen: expressions of what of it is not.

    Raises:
      ValueError: for an expression that is none; in `set_param_axes` and `init`, if one matches no parameter, naming
        the nearest paths, or if nothing is left to train.
    """

    def __init__(self, optimizer: Any, trained: Sequence[str] = ("/.*",), frozen: Sequence[str] = ()):
        self._patterns = {
            name: compiled_all(f"PartialOptimizer.{name}", regexes)
            for name, regexes in (("trained", trained), ("frozen", frozen))
        }
        super().__init__([(self._trains, optimizer)])

    def _trains(self, path: str, _: Any = None) -> bool:
        trained, frozen = ([p.fullmatch(path) for p in self._patterns[name]] for name in ("trained", "frozen"))
        return any(trained) and not any(frozen)

    def _paths(self, tree: PyTree) -> list[list[tuple[str, ...]]]:
        paths = ["/" + "/".join(path) for path in traverse_util.flatten_dict(tree)]
        for name, patterns in self._patterns.items():
            for pattern in patterns:
                require_match(f"PartialOptimizer.{name}", pattern, paths)
        if not any(map(self._trains, paths)):
            trained, frozen = ([pattern.pattern for pattern in self._patterns[x]] for x in ("trained", "frozen"))
            raise ValueError(f"PartialOptimizer.trained = {trained} and frozen = {frozen} leave no parameter to train.")
        return super()._paths(tree)


def compiled_all(where: str, regexes: Sequence[str]) -> list[re.Pattern[str]]:
    """Expressions of a gin binding, compiled. Raises ValueError if they are not a list, or one is not an expression."""
    if not isinstance(regexes, list | tuple):
        raise ValueError(f"{where} is {regexes!r}; it is a list of regular expressions, such as ['/encoder/.*'].")
    patterns = []
    for regex in regexes:
        try:
            patterns.append(re.compile(regex))
        except (re.error, TypeError) as error:
            raise ValueError(f"{where} has {regex!r}, which is not a regular expression: {error}.") from error
    return patterns


def require_match(where: str, pattern: re.Pattern[str], paths: Iterable[str]) -> None:
    """Raises ValueError, naming the nearest paths, unless a pattern matches one of them whole."""
    paths = list(paths)
    if any(map(pattern.fullmatch, paths)):
        return
    nearest = [path for path in paths if pattern.search(path) or pattern.fullmatch(path[1:])]
    nearest = nearest or sorted(paths, key=functools.partial(_likeness, pattern.pattern), reverse=True)
    raise ValueError(
        f"{where} has {pattern.pattern!r}, which matches no parameter. An expression matches the whole path, slash "
        f"included; the nearest are {', '.join(nearest[:3])}."
    )


def _likeness(regex: str, path: str) -> float:
    """How much the end of a path is like the words of an expression."""
    words = re.sub(r"[^\w/]+", "", regex).strip("/")
    end = path.split("/")[-words.count("/") - 1 :]
    return difflib.SequenceMatcher(None, words, "/".join(end)).ratio()


def count_trained(optimizer_def: Any, params: PyTree) -> tuple[int, int]:
    """How many numbers an optimizer definition trains, and how many there are."""
    total = sum(math.prod(x.shape) for x in jax.tree.leaves(params))
    if not hasattr(optimizer_def, "trained_paths"):
        return total, total
    flat = traverse_util.flatten_dict(params)
    return sum(math.prod(flat[path].shape) for path in optimizer_def.trained_paths(params)), total
