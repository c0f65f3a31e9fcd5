"""Interceptors of Flax that are to see the call of each layer, also of layers that are otherwise traced once."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import flax.linen as nn

_see_each_layer = contextvars.ContextVar("interceptors see each layer", default=False)


def see_each_layer() -> bool:
    """Whether each layer is to be traced by itself, though another one is the same function."""
    return _see_each_layer.get()


@contextlib.contextmanager
def intercept(interceptor: Any) -> Iterator[None]:
    """`nn.intercept_methods` for what is traced inside."""
    token = _see_each_layer.set(True)
    try:
        with nn.intercept_methods(interceptor):
            yield
    finally:
        _see_each_layer.reset(token)
