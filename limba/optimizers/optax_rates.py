"""The learning rate of optax's optimizers is the Trainer's, while the Trainer runs them.

Optax's optimizers are built with a rate of their own, which they apply through one function of optax,
`scale_by_learning_rate`; importing this module replaces it by one that asks first whether there is a Trainer.
"""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax._src import transform as optax_transform

Array = jax.Array


@dataclasses.dataclass
class Training:
    """What transformations may know while a definition runs them."""

    param_axes: dict[tuple[str, ...], tuple[str | None, ...]]  # flat, by the path of a parameter
    learning_rate: Array | None = None  # the Trainer's; None while the state is made
    replaced: list[Any] = dataclasses.field(default_factory=list)  # rates in whose place that one was applied


_current: contextvars.ContextVar[Training | None] = contextvars.ContextVar("training", default=None)


@contextlib.contextmanager
def within(training: Training) -> Iterator[Training]:
    """What transformations know inside of the block."""
    token = _current.set(training)
    try:
        yield training
    finally:
        _current.reset(token)


def current() -> Training | None:
    """What transformations may know; None outside of a definition."""
    return _current.get()


_optax_scale_by_learning_rate = optax_transform.scale_by_learning_rate


@functools.wraps(_optax_scale_by_learning_rate)
def _scale_by_learning_rate(
    learning_rate: optax.ScalarOrSchedule | None = None, *, flip_sign: bool = True
) -> optax.GradientTransformation:
    """Optax's function of this name, with the Trainer's rate where there is a Trainer. The state stays optax's."""
    own = _optax_scale_by_learning_rate(learning_rate, flip_sign=flip_sign)
    if learning_rate is None:
        return own  # Optax's way to say that nothing is scaled.

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        scaled, new_state = own.update(updates, state, params)
        training = current()
        if training is not None and training.learning_rate is not None:
            training.replaced.append(learning_rate)
            rate = -training.learning_rate if flip_sign else training.learning_rate
            scaled = jax.tree.map(lambda u: jnp.asarray(rate, u.dtype) * u, updates)
        return scaled, new_state

    return optax.GradientTransformation(own.init, update)


# Optax's optimizers look the function up when they are built, in the module that defines it.
optax_transform.scale_by_learning_rate = _scale_by_learning_rate
optax.scale_by_learning_rate = _scale_by_learning_rate
