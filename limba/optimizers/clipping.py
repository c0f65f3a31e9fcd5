"""Clipping of gradients before any optimizer, Adafactor and mixtures of optimizers included."""

from typing import Any

import jax
import optax

from limba.optimizers.argument_checks import Range, check_numbers
from limba.optimizers.definitions import as_optimizer_def

Array = jax.Array
PyTree = Any


class ClippedOptimizer:
    """An optimizer definition that gets clipped gradients. Its state, and so its checkpoints, are the optimizer's own.

    Everything else (`init`, `state_axes` …) is the optimizer's. Clipping needs a loss whose size does not depend
    on the batch's: `LOSS_NORMALIZING_FACTOR = 'NUM_REAL_TARGET_TOKENS'`.

    Args:
      optimizer: a definition, or a transformation of optax.
      max_norm: the L2 norm of all gradients together is at most this; None leaves it.
      max_value: each number is at most this in magnitude, before the norm is taken; None leaves them.

    Raises:
      ValueError: for a bound that is not above 0, or without any.
    """

    def __init__(self, optimizer: Any, max_norm: float | None = None, max_value: float | None = None):
        if max_norm is None and max_value is None:
            raise ValueError("ClippedOptimizer needs max_norm or max_value.")
        bounds = {"max_norm": max_norm, "max_value": max_value}
        check_numbers("ClippedOptimizer", dict.fromkeys(bounds, Range(is_above=True, or_none=True)), bounds)
        self.optimizer = as_optimizer_def(optimizer)
        by_value = [] if max_value is None else [optax.clip(max_value)]
        by_norm = [] if max_norm is None else [optax.clip_by_global_norm(max_norm)]
        self._clip = optax.chain(*by_value, *by_norm)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "optimizer":  # Copying asks before there is an optimizer.
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def update(
        self, grads: PyTree, state: PyTree, params: PyTree, *, learning_rate: Array, step: Array
    ) -> tuple[PyTree, PyTree]:
        clipped, _ = self._clip.update(grads, self._clip.init(params), params)
        return self.optimizer.update(clipped, state, params, learning_rate=learning_rate, step=step)
