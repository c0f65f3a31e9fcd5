"""Leaving out updates whose gradient is far larger than usual, without going back to a checkpoint."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from limba.optimizers.definitions import as_optimizer_def, refuse_inside

Array = jax.Array
PyTree = Any


class SkipOutliers:
    """An optimizer that leaves out steps whose gradient's norm is more than `factor` times the median of the last ones.

    Parameters and the optimizer's own state then stay as they are, bit for bit, and the norm is forgotten. After
    `most_in_a_row` such steps the next one counts, so that a run whose gradients have grown for good goes on.

    In a checkpoint the optimizer's state lies under `optimizer`, with the norms (float32 `[window]`) beside it.

    Args:
      optimizer: a definition, or a transformation of optax.
      factor: of the median; above 1.
      window: steps whose norms are kept.
      least: steps that must have been made before one can be left out.
      most_in_a_row: see above.

    Raises:
      ValueError: for a value that cannot be meant.
    """

    def __init__(
        self, optimizer: Any, factor: float = 10.0, window: int = 128, least: int = 32, most_in_a_row: int = 10
    ):
        if not factor > 1:
            raise ValueError(f"SkipOutliers.factor is {factor!r}; it multiplies the median, and is above 1.")
        if not 1 <= least <= window:
            raise ValueError(f"SkipOutliers.least is {least!r}; it is between 1 and the window of {window!r} steps.")
        if most_in_a_row < 1:
            raise ValueError(f"SkipOutliers.most_in_a_row is {most_in_a_row!r}; it is at least 1.")
        self.optimizer: Any = as_optimizer_def(optimizer)
        refuse_inside("SkipOutliers", [self.optimizer])
        self._factor, self._window, self._least, self._most_in_a_row = factor, window, least, most_in_a_row

    def __getattr__(self, name: str) -> Any:
        """What else definitions have: `skip_nan_updates`, `own_rates`, `trained_paths`."""
        if name.startswith("__") or name == "optimizer":  # Copying asks before there is an optimizer.
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def set_param_axes(self, param_axes: PyTree) -> None:
        self.optimizer.set_param_axes(param_axes)

    def init(self, params: PyTree) -> PyTree:
        count = lambda: jnp.zeros((), jnp.int32)  # noqa: E731
        return {
            "optimizer": self.optimizer.init(params),
            "norms": jnp.zeros((self._window,), jnp.float32),
            "seen": count(),
            "in_a_row": count(),
            "skipped": count(),
        }

    def update(
        self, grads: PyTree, state: PyTree, params: PyTree, *, learning_rate: Array, step: Array
    ) -> tuple[PyTree, PyTree]:
        norm, seen, in_a_row = optax.global_norm(grads).astype(jnp.float32), state["seen"], state["in_a_row"]
        is_known = jnp.arange(self._window) < seen
        median = jnp.nanmedian(jnp.where(is_known, state["norms"], jnp.nan))
        is_outlier = (seen >= self._least) & (in_a_row < self._most_in_a_row) & ~(norm <= self._factor * median)
        updates, new = self.optimizer.update(grads, state["optimizer"], params, learning_rate=learning_rate, step=step)
        # -0.0, because 0.0 added to a parameter of -0.0 would change its sign.
        updates = jax.tree.map(lambda u: jnp.where(is_outlier, jnp.asarray(-0.0, u.dtype), u), updates)
        kept = jax.tree.map(lambda old, x: jnp.where(is_outlier, old, x), state["optimizer"], new)
        return updates, {
            "optimizer": kept,
            "norms": jnp.where(is_outlier, state["norms"], state["norms"].at[seen % self._window].set(norm)),
            "seen": jnp.where(is_outlier, seen, seen + 1),
            "in_a_row": jnp.where(is_outlier, in_a_row + 1, 0),
            "skipped": state["skipped"] + is_outlier.astype(jnp.int32),
        }

    def state_axes(self, params: PyTree, param_axes: PyTree) -> PyTree:
        alone = dict.fromkeys(("norms", "seen", "in_a_row", "skipped"), PartitionSpec())
        return {"optimizer": self.optimizer.state_axes(params, param_axes), **alone}

    def figures(self, state: PyTree) -> dict[str, Array]:
        """What each step's metrics have of the state: how many updates were left out so far."""
        return {"skipped_updates": state["skipped"]}
