"""gin's references, `@name` and `%NAME`, in bound values: finding them, and how many one value may stand for.

Twenty lines `A = [%B, %B]`, `B = [%C, %C]` … are a value of a million parts, or a million calls of functions.
"""

import threading
from collections.abc import Iterator
from typing import Any

from gin import config as gin_config

from limba.gin_config.messages import GinError

# Calls and macros behind one reference. A whole model has some dozens.
_MOST = 50_000


def references(value: Any) -> Iterator[Any]:
    """The references in a bound value, which may be nested; those in the keys of a dict, too, which gin calls."""
    if isinstance(value, gin_config.ConfigurableReference):
        yield value
    elif isinstance(value, list | tuple | dict):
        for part in [*value.keys(), *value.values()] if isinstance(value, dict) else value:
            yield from references(part)


class _Evaluation(threading.local):
    depth = 0
    count = 0


_now = _Evaluation()
_original = gin_config.ConfigurableReference.__deepcopy__


def _evaluate(reference: Any, memo: Any) -> Any:
    """gin's way from a reference to what it stands for: it is copied."""
    _now.count = _now.count + 1 if _now.depth else 1
    if _now.count > _MOST:
        raise GinError(f"a value stands for more than {_MOST:,} others, which refer to each other; write fewer.")
    _now.depth += 1
    try:
        return _original(reference, memo)
    finally:
        _now.depth -= 1


def install() -> None:
    """Makes gin count. Does nothing the second time."""
    gin_config.ConfigurableReference.__deepcopy__ = _evaluate
