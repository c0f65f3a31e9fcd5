"""Why a step of training is not finite: its batch, a parameter, a layer or a gradient; causes and remedies."""

import functools

import jax
import jax.numpy as jnp

from limba.checkpoints.train_state import TrainState
from limba.data.contract import Batch
from limba.network.finite_numbers import layers as finite_layers
from limba.training import trainer as trainer_lib
from limba.training.trainer import BaseTrainer

_REMEDY = (
    "Go on from an earlier checkpoint with a lower learning rate, a longer warm-up or clipped gradients "
    "(docs/optimizers.md)"
)


def describe(trainer: BaseTrainer, state: TrainState, step: int, batch: Batch) -> str:
    """Sentences with the first thing of a step that is not finite, its possible causes and the remedies.

    Args:
      state: after the step, or after the one that follows: its parameters are finite unless an update made them so.
      step: the step of the batch.
      batch: on the devices.
    """
    floats = {name: x for name, x in batch.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    if feature := finite_layers.first_leaf(floats):
        return f"The feature {feature} of its batch has NaN or infinite values: look at the task's preprocessors."
    before = jnp.int32(step - 1)
    model, rng = trainer.model.at_step(before), trainer._get_step_rng(before)
    rows = next(iter(batch.values())).shape[0]
    # The whole batch at once, also where gradients are computed in microbatches.
    loss = trainer.partitioner.jit(lambda params, batch, rng: model.loss_fn(params, batch, rng)[0])
    cause = finite_layers.find(state.params, lambda: loss(state.params, batch, rng), rows)
    if cause.parameter is not None:
        return (
            f"{cause} Either the run began with it, and that checkpoint is damaged, or an update made it so: the "
            "learning rate is too high or has no warm-up, or a gradient was not finite, after a loss that still was. "
            f"{_REMEDY}."
        )
    if cause.layer is not None:
        return (
            f"{cause} Its inputs and parameters are finite: they have grown until what it computes, such as the logits "
            f"of attention, overflows. {_REMEDY}, or compute in float32."
        )
    if not cause.searched:
        return f"{cause} {_REMEDY}."
    gradients = jax.jit(functools.partial(trainer_lib.accumulate_gradients, model), static_argnums=3)
    with trainer.partitioner.activate():
        parameter = finite_layers.first_leaf(gradients(state.params, batch, rng, trainer.num_microbatches)[0])
    if parameter is not None:
        return f"{cause} The gradient of {parameter} is not finite. {_REMEDY}, or compute in float32."
    return f"{cause} So are its gradients: the loss function, after the network, or the update is not. {_REMEDY}."
