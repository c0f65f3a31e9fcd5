"""Functions that register a task or mixture may be called again, as modules are imported again."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from limba.tasks.registry.tasks import MixtureRegistry, Registry

_P = ParamSpec("_P")
_T = TypeVar("_T")


def once(registry: Registry) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorates a function that adds `name`, one of its arguments, to a registry.

    A second call with the same arguments returns what is registered.

    Raises:
      ValueError: from the decorated function, if the name is taken and was registered with other arguments.
    """
    kind = "mixture" if registry is MixtureRegistry else "task"
    registered: dict[str, dict[str, Any]] = {}

    def decorate(register: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(register)
        def register_once(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            bound = inspect.signature(register).bind(*args, **kwargs)
            bound.apply_defaults()
            name = bound.arguments["name"]
            if name not in registry.names():
                result = register(*args, **kwargs)
                registered[name] = bound.arguments
                return result
            if registered.get(name) != bound.arguments:
                raise ValueError(f"A {kind} {name!r} is registered already, with other arguments; choose another name.")
            return registry.get(name)

        return register_once

    return decorate
