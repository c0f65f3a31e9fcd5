"""Sizes of weights, gradients and updates, per parameter: T5X's optional training metrics."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from limba.checkpoints.train_state import TrainState
from limba.models import metrics as metrics_lib

PyTree = Any
Array = jax.Array


def _rms(x: Array) -> Array:
    return jnp.sqrt(jnp.mean(jnp.square(x)))


class WeightMetricsComputer:
    """Bound as `trainer.Trainer.weight_metrics_computer`; costs a pass over the parameters in each step.

    Per parameter `p` (such as `decoder/decoder_norm/scale`): `weight_rms/p` and `weight_max/p` (of magnitudes) after
    the update, `weight_gradient_rms/p`, `weight_update_rms/p`, and `weight_update_divided_by_weight_rms/p`, the RMS of
    the elementwise ratio of update and weight before it. And `weight_gradient_norm`, the L2 norm of the whole gradient.
    """

    def compute_metrics(
        self, gradients: PyTree, old_train_state: TrainState, new_train_state: TrainState
    ) -> metrics_lib.Metrics:
        """Metrics of one step, to be averaged over steps; the gradients are those that the optimizer is given."""
        updates = jax.tree.map(jnp.subtract, new_train_state.params, old_train_state.params)
        ratios = jax.tree.map(jnp.divide, updates, old_train_state.params)
        squares = [jnp.sum(jnp.square(g)) for g in jax.tree.leaves(gradients)]
        values = {"weight_gradient_norm": jnp.sqrt(jnp.sum(jnp.stack(squares)))}
        for name, size, tree in (
            ("weight_rms", _rms, new_train_state.params),
            ("weight_max", lambda x: jnp.max(jnp.abs(x)), new_train_state.params),
            ("weight_gradient_rms", _rms, gradients),
            ("weight_update_rms", _rms, updates),
            ("weight_update_divided_by_weight_rms", _rms, ratios),
        ):
            flat = traverse_util.flatten_dict(tree, sep="/")
            values |= {f"{name}/{parameter}": size(x) for parameter, x in flat.items()}
        return {name: metrics_lib.per_step(value) for name, value in values.items()}
