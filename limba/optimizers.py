"""Optimizer definitions: what a model's `optimizer_def` must offer, and any optax optimizer as one."""

from typing import Any, Protocol

import jax
import optax
from jax.sharding import PartitionSpec

Array = jax.Array
PyTree = Any


class OptimizerDef(Protocol):
    """Optax's protocol with the learning rate and the step passed in, plus logical axes for the state."""

    def set_param_axes(self, param_axes: PyTree) -> None:
        """Tells the logical axes of the parameters, before `init`."""
        ...

    def init(self, params: PyTree) -> PyTree: ...

    def update(
        self, grads: PyTree, state: PyTree, params: PyTree, *, learning_rate: Array, step: Array
    ) -> tuple[PyTree, PyTree]:
        """Updates to add to the parameters, and the new state."""
        ...

    def state_axes(self, params: PyTree, param_axes: PyTree) -> PyTree:
        """Logical axes for every leaf of the state; None is replicated."""
        ...


class OptaxOptimizer:
    """Any optax transformation under the Trainer's schedule.

    Build the transformation with `learning_rate=1.0` (`optax.adamw(1.0, weight_decay=0.01)`, or bind
    `optax.adamw.learning_rate = 1.0` in gin): its updates are multiplied by what `Trainer.learning_rate_fn` returns,
    which for every optax optimizer is the same as having given it that schedule.
    """

    def __init__(self, transformation: optax.GradientTransformation):
        self.transformation = transformation

    def set_param_axes(self, param_axes: PyTree) -> None:
        del param_axes  # Optax works on values alone.

    def init(self, params: PyTree) -> PyTree:
        return self.transformation.init(params)

    def update(
        self, grads: PyTree, state: PyTree, params: PyTree, *, learning_rate: Array, step: Array
    ) -> tuple[PyTree, PyTree]:
        del step  # Optax keeps its own count.
        updates, state = self.transformation.update(grads, state, params)
        return jax.tree.map(lambda u: learning_rate * u, updates), state

    def state_axes(self, params: PyTree, param_axes: PyTree) -> PyTree:
        state = jax.eval_shape(self.transformation.init, params)

        def axes_of(leaf, axes):
            # Statistics that do not have the parameter's shape (factored ones) are small: replicate them.
            return axes if len(leaf.shape) == len(axes) else PartitionSpec()

        return optax.tree_map_params(
            self.transformation, axes_of, state, param_axes, transform_non_params=lambda _: PartitionSpec()
        )
