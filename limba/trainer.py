"""The jitted training and evaluation steps, and the state they act on."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from limba import evaluation, optimizers
from limba import metrics as metrics_lib
from limba.data import Batch
from limba.models import EncoderDecoderModel
from limba.partitioning import PjitPartitioner
from limba.schedules import LearningRateFn
from limba.train_state import TrainState

Array = jax.Array
PyTree = Any


class Trainer:
    """Binds model, mesh and schedule into steps.

    Attributes:
      model: loss, metrics and optimizer definition.
      partitioner: mesh and rules.
      learning_rate_fn: from the step before the update to the learning rate.
      num_microbatches: the batch is worked off in this many parts and updated once; activations then need that much
        less memory. None, 0 and 1 mean the whole batch at once.
      rng: of dropout; each step folds its number in, so a resumed run draws the same.
    """

    def __init__(
        self,
        model: EncoderDecoderModel,
        partitioner: PjitPartitioner,
        learning_rate_fn: LearningRateFn,
        num_microbatches: int | None = None,
        rng: Array | None = None,
    ):
        self.model = model
        self.partitioner = partitioner
        self.learning_rate_fn = learning_rate_fn
        self.num_microbatches = num_microbatches or 1
        self.rng = jax.random.key(0) if rng is None else rng

        self.param_shapes, self.param_axes = model.param_shapes_and_axes()
        model.optimizer_def.set_param_axes(self.param_axes)
        optimizers.warn_of_other_rates(model.optimizer_def, learning_rate_fn, self.param_shapes)
        partitioner.check_shapes(self.param_shapes, self.param_axes)
        self.state_shapes = jax.eval_shape(self._new_state, jax.random.key(0))
        self.state_shardings: Any = TrainState(
            step=partitioner.replicated,  # type: ignore[arg-type]
            params=partitioner.shardings(self.param_axes),
            opt_state=partitioner.shardings(model.optimizer_def.state_axes(self.param_shapes, self.param_axes)),
        )
        self.train_step = partitioner.jit(
            self.step,
            in_shardings=(self.state_shardings, partitioner.data_sharding),
            out_shardings=(self.state_shardings, partitioner.replicated),
            donate_argnums=(0,),
        )
        self.eval_step = evaluation.make_eval_step(model, partitioner, self.state_shardings.params)

    # ----------------------------------------------------- state ----------------------------------------------------

    def _new_state(self, rng: Array) -> TrainState:
        params = self.model.initial_variables(rng)["params"]
        return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=self.model.optimizer_def.init(params))

    def new_state(self, rng: Array) -> TrainState:
        """A randomly initialized state, created where it is sharded. The same numbers on every mesh."""
        return self.partitioner.jit(self._new_state, out_shardings=self.state_shardings)(rng)

    def sharded_state_shapes(self) -> TrainState:
        """Shapes, dtypes and shardings of the state: what a checkpoint is restored into."""
        return jax.tree.map(
            lambda shape, sharding: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding),
            self.state_shapes,
            self.state_shardings,
        )

    # ----------------------------------------------------- steps ----------------------------------------------------

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, metrics_lib.Metrics]:
        """One update; `train_step` is this, jitted."""
        rng = jax.random.fold_in(self.rng, state.step)
        grads, metrics = self.gradients(state.params, batch, rng)
        learning_rate = self.learning_rate_fn(state.step)
        updates, opt_state = self.model.optimizer_def.update(
            grads, state.opt_state, state.params, learning_rate=learning_rate, step=state.step
        )
        params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), state.params, updates)
        metrics["learning_rate"] = metrics_lib.per_step(learning_rate)
        return TrainState(step=state.step + 1, params=params, opt_state=opt_state), metrics

    def gradients(self, params: PyTree, batch: Batch, rng: Array) -> tuple[PyTree, metrics_lib.Metrics]:
        """Gradients of the loss over the whole batch, summed up over microbatches in float32."""
        gradient_fn = jax.grad(self.model.loss_fn, has_aux=True)
        if self.num_microbatches == 1:
            grads, metrics = gradient_fn(params, batch, rng)
            return grads, metrics

        # Microbatch i takes every n-th row: then each device works on rows that it already has. Consecutive rows would
        # all lie on a few devices, and the batch would have to be gathered for every microbatch.
        n = self.num_microbatches
        microbatches = {name: x.reshape(x.shape[0] // n, n, *x.shape[1:]) for name, x in batch.items()}
        microbatch = lambda i: {name: x[:, i] for name, x in microbatches.items()}  # noqa: E731
        # Plain sums add up; a loss normalized over its microbatch counts by the microbatch's share of the batch.
        weights = [weight for i in range(n) if (weight := self.model.microbatch_weight(microbatch(i))) is not None]
        shares = jnp.asarray(weights, jnp.float32) / sum(weights) if weights else jnp.ones(n)

        def accumulate(carry, i):
            grads, metrics = carry
            part_grads, part_metrics = gradient_fn(params, microbatch(i), jax.random.fold_in(rng, i))
            grads = jax.tree.map(lambda total, g: total + shares[i] * g.astype(jnp.float32), grads, part_grads)
            part_metrics = _scale_losses(part_metrics, shares[i])
            return (grads, metrics_lib.add_microbatches(metrics, part_metrics)), None

        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
        metric_shapes = jax.eval_shape(lambda: gradient_fn(params, microbatch(0), rng)[1])
        no_metrics = jax.tree.map(lambda m: jnp.zeros(m.shape, m.dtype), metric_shapes)
        (grads, metrics), _ = jax.lax.scan(accumulate, (zeros, no_metrics), jnp.arange(n))
        return grads, metrics


def _scale_losses(metrics: metrics_lib.Metrics, share: Array | float) -> metrics_lib.Metrics:
    """Weighs the numerators of everything that is a loss, as the gradient is weighed."""
    return {
        name: dataclasses.replace(m, total=m.total * share) if "loss" in name and "non_padding" not in name else m
        for name, m in metrics.items()
    }
