"""The jitted training and evaluation steps, and the compiling of the first before it is needed."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import traverse_util
from jax.sharding import PartitionSpec

from limba.checkpoints.train_state import TrainState, TrainStateInitializer
from limba.data.contract import Batch
from limba.devices import compiling
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_0
from limba.models import BaseTransformerModel
from limba.models import metrics as metrics_lib
from limba.optimizers import definitions
from limba.optimizers.schedules import LearningRateFn, check_schedule, scaled
from limba.partitioning.meshes import PjitPartitioner

Array = jax.Array
PyTree = Any


class BaseTrainer(abc.ABC):
    """A training step and an evaluation step of a model on a mesh; a subclass defines them. Arguments are T5X's.

    Attributes:
      rng: of dropout; each step folds its number in, so a resumed run draws the same.
      train_state: the shapes of the state; `train()` makes the trainer before it makes or restores the state itself.
      state_shardings: the sharding of each array of the state.
      num_microbatches: parts of a batch, which the mesh's data shards divide.
      learning_rate_fn: from the step to the learning rate; None for a subclass that does not say.
    """

    num_microbatches: int = 1
    learning_rate_fn: LearningRateFn | None = None

    def __init__(
        self,
        model: BaseTransformerModel,
        partitioner: PjitPartitioner,
        rng: Array | None = None,
        train_state: TrainState | None = None,
        train_state_axes: TrainState | None = None,
        eval_names: Collection[str] = (),
        summary_dir: str | None = None,
    ):
        del eval_names, summary_dir  # `train()` evaluates and writes.
        self.model, self.partitioner = model, partitioner
        self.rng = jax.random.key(0) if rng is None else rng
        if train_state is None or train_state_axes is None:
            train_state, train_state_axes = self.initializer.train_state_shapes, self.initializer.train_state_axes
        self.train_state = train_state
        self.state_shardings: Any = train_state_axes
        # The names that T5X's subclasses use.
        self._model, self._partitioner, self._base_rng = self.model, self.partitioner, self.rng
        self._train_state_axes = self.state_shardings

    @functools.cached_property
    def initializer(self) -> TrainStateInitializer:
        """Makes states of the model on this mesh, for use of a trainer without `train()`."""
        return TrainStateInitializer(self.model.optimizer_def, self.model.initial_variables, self.partitioner)

    def new_state(self, rng: Array) -> TrainState:
        """A randomly initialized state."""
        return self.initializer.from_scratch(rng)

    def sharded_state_shapes(self) -> TrainState:
        """Shapes, dtypes and shardings of the state: what a checkpoint is restored into."""
        with_sharding = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
        return jax.tree.map(with_sharding, self.train_state, self.state_shardings)

    @property
    def param_shapes(self) -> PyTree:
        return self.train_state.params

    def draw_other_dropout(self, number: int) -> None:
        """Dropout of all steps becomes another, the `number`-th; call it before the first step."""
        self.rng = self._base_rng = jax.random.fold_in(self.rng, number)

    def scale_rate(self, scale: float) -> None:
        """From the next step on, the learning rate is the schedule's times `scale`."""
        raise ValueError(
            f"train.actions has a DropOnPlateauAction, and {type(self).__name__} has no learning rate to scale; derive "
            "it from trainer.Trainer."
        )

    def _get_step_rng(self, step: Array) -> Array:
        return jax.random.fold_in(self.rng, step)

    @property
    @abc.abstractmethod
    def _partitioned_train_step(self) -> Callable[[TrainState, Batch], tuple[TrainState, metrics_lib.Metrics]]:
        """A jitted update; it may donate the state."""

    @property
    @abc.abstractmethod
    def _partitioned_eval_step(self) -> Callable[[TrainState, Batch], metrics_lib.Metrics]:
        """The jitted metrics of a batch, without dropout."""

    @property
    def train_step(self) -> Any:
        """`(state, sharded batch) -> (state, metrics)`, jitted."""
        return self._partitioned_train_step

    def eval_step(self, state: TrainState, batch: Batch) -> metrics_lib.Metrics:
        """Metrics over all hosts of a batch: this host's rows, or what `shard_batch` made of them."""
        return self._partitioned_eval_step(state, self.partitioner.shard_batch(batch))


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


class Trainer(BaseTrainer):
    """Gradients over microbatches, and one update by the optimizer.

    Attributes:
      learning_rate_fn: from the step before the update to the learning rate.
      num_microbatches: gradients are computed for this many parts of a batch, one after another, before the one update;
        activations then need that much less memory. None, 0 and 1 mean the whole batch at once.
      weight_metrics_computer: adds its metrics to each step's.
      measures_gradient: whether each step has the metric `gradient_norm`, the L2 norm of the whole gradient.

    Raises:
      ValueError: for a number of microbatches that is not whole, or a schedule that gives no rate for a step.
    """

    def __init__(
        self,
        model: BaseTransformerModel,
        partitioner: PjitPartitioner,
        learning_rate_fn: LearningRateFn,
        num_microbatches: int | None = None,
        rng: Array | None = None,
        weight_metrics_computer: WeightMetricsComputer | None = None,
        train_state: TrainState | None = None,
        train_state_axes: TrainState | None = None,
        eval_names: Collection[str] = (),
        summary_dir: str | None = None,
        measures_gradient: bool = False,
    ):
        number_ranges.check("Trainer.num_microbatches", num_microbatches, AT_LEAST_0._replace(or_none=True))
        check_schedule("Trainer.learning_rate_fn", learning_rate_fn)
        super().__init__(model, partitioner, rng, train_state, train_state_axes, eval_names, summary_dir)
        definitions.warn_of_other_rates(model.optimizer_def, learning_rate_fn, self.param_shapes)
        self.learning_rate_fn: LearningRateFn = learning_rate_fn
        self.num_microbatches = num_microbatches or 1
        self.weight_metrics_computer, self.measures_gradient = weight_metrics_computer, measures_gradient
        self._learning_rate_fn, self._num_microbatches = learning_rate_fn, self.num_microbatches
        self._weight_metrics_computer = weight_metrics_computer
        self._unscaled_rate_fn, self._rate_scale = learning_rate_fn, 1.0

    def scale_rate(self, scale: float) -> None:
        """From the next step on, the learning rate is the schedule's times `scale`; the step is compiled for it."""
        if scale != self._rate_scale:
            self._rate_scale = scale
            self.learning_rate_fn = self._learning_rate_fn = scaled(self._unscaled_rate_fn, scale)
            self.__dict__.pop("_partitioned_train_step", None)

    @functools.cached_property
    def _partitioned_train_step(self) -> Any:
        return self.partitioner.jit(
            functools.partial(self.step),  # a new function each time: JAX remembers the traces of old ones
            in_shardings=(self.state_shardings, self.partitioner.data_sharding),
            out_shardings=(self.state_shardings, self.partitioner.replicated),
            donate_argnums=(0,),
        )

    @functools.cached_property
    def _partitioned_eval_step(self) -> Any:
        return self.partitioner.jit(
            functools.partial(eval_step, self.model),
            in_shardings=(self.state_shardings, self.partitioner.data_sharding),
            out_shardings=self.partitioner.replicated,
        )

    def step(self, state: TrainState, batch: Batch) -> tuple[TrainState, metrics_lib.Metrics]:
        """One update; `train_step` is this, jitted."""
        rate, rng = self.learning_rate_fn(state.step), self._get_step_rng(state.step)
        return train_with_lr(
            train_state=state,
            batch=batch,
            learning_rate=rate,
            dropout_rng=rng,
            model=self.model,
            num_microbatches=self.num_microbatches,
            weight_metrics_computer=self.weight_metrics_computer,
            measures_gradient=self.measures_gradient,
        )

    def gradients(self, params: PyTree, batch: Batch, rng: Array) -> tuple[PyTree, metrics_lib.Metrics]:
        """Gradients of the loss over the whole batch, and its metrics."""
        return accumulate_gradients(self.model, params, batch, rng, self.num_microbatches)


def train_with_lr(
    train_state: TrainState,
    batch: Batch,
    learning_rate: Array,
    dropout_rng: Array,
    model: BaseTransformerModel,
    num_microbatches: int | None = None,
    weight_metrics_computer: WeightMetricsComputer | None = None,
    data_partition_spec: PartitionSpec | None = None,
    measures_gradient: bool = False,
) -> tuple[TrainState, metrics_lib.Metrics]:
    """One update at a learning rate, the function that T5X's trainers wrap: the new state and the batch's metrics.

    With `measures_gradient` they have `gradient_norm`, the L2 norm of the gradient that the optimizer is given.
    """
    del data_partition_spec  # Microbatches keep the batch's sharding.
    model = model.at_step(train_state.step)
    grads, metrics = accumulate_gradients(model, train_state.params, batch, dropout_rng, num_microbatches or 1)
    if not getattr(model.optimizer_def, "skip_nan_updates", False):
        # A loss that is not finite teaches nothing. Without its gradient the parameters stay finite, and the training
        # loop, which sees the loss later, can search the layer.
        is_finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(metrics.get("loss"))]))
        grads = jax.tree.map(lambda g: jnp.where(is_finite, g, 0), grads)
    with jax.named_scope("optimizer"):  # for profiles
        updates, opt_state = model.optimizer_def.update(
            grads, train_state.opt_state, train_state.params, learning_rate=learning_rate, step=train_state.step
        )
        params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), train_state.params, updates)
    new_state = TrainState(step=train_state.step + 1, params=params, opt_state=opt_state)
    if hasattr(model.optimizer_def, "figures"):
        metrics |= {
            k: metrics_lib.Last(x.astype(jnp.float32)) for k, x in model.optimizer_def.figures(opt_state).items()
        }
    if measures_gradient:
        metrics["gradient_norm"] = metrics_lib.per_step(optax.global_norm(grads))
    metrics["learning_rate"] = metrics_lib.per_step(learning_rate)
    metrics["learning_rate/current"] = metrics_lib.Last(jnp.asarray(learning_rate, jnp.float32))
    if weight_metrics_computer is not None:
        metrics |= weight_metrics_computer.compute_metrics(grads, train_state, new_state)
    return new_state, metrics


def eval_step(model: BaseTransformerModel, train_state: TrainState, batch: Batch) -> metrics_lib.Metrics:
    """The metrics of a batch without dropout."""
    return model.eval_fn(train_state.params, batch)[1]


def accumulate_gradients(
    model: BaseTransformerModel, params: PyTree, batch: Batch, rng: Array, num_microbatches: int
) -> tuple[PyTree, metrics_lib.Metrics]:
    """Gradients of the loss over the whole batch, summed up over microbatches in float32, and its metrics."""
    gradient_fn = jax.grad(model.loss_fn, has_aux=True)
    if num_microbatches == 1:
        grads, metrics = gradient_fn(params, batch, rng)
        return grads, dict(metrics)

    # Microbatch i takes every n-th row: then each device works on rows that it already has. Consecutive rows would
    # all lie on a few devices, and the batch would have to be gathered for every microbatch.
    n = num_microbatches
    microbatches = {name: x.reshape(x.shape[0] // n, n, *x.shape[1:]) for name, x in batch.items()}
    microbatch = lambda i: {name: x[:, i] for name, x in microbatches.items()}  # noqa: E731
    # Plain sums add up; a loss normalized over its microbatch counts by the microbatch's share of the batch.
    weights = [weight for i in range(n) if (weight := model.microbatch_weight(microbatch(i))) is not None]
    shares = jnp.asarray(weights, jnp.float32) / sum(weights) if weights else jnp.ones(n)

    def accumulate(carry: Any, i: Array) -> tuple[Any, None]:
        grads, metrics = carry
        part_grads, part_metrics = gradient_fn(params, microbatch(i), jax.random.fold_in(rng, i))
        # The mean over no targets is 0 / 0, and counts nothing.
        part_of_whole = lambda x: jnp.where(shares[i] == 0, 0.0, shares[i] * x.astype(jnp.float32))  # noqa: E731
        grads = jax.tree.map(lambda total, g: total + part_of_whole(g), grads, part_grads)
        for name, metric in part_metrics.items():
            if isinstance(metric, metrics_lib.Ratio) and metrics_lib.is_of_minimized_loss(name):
                part_metrics[name] = dataclasses.replace(metric, total=part_of_whole(metric.total))
        return (grads, metrics_lib.add_microbatches(metrics, part_metrics)), None

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    metric_shapes = jax.eval_shape(lambda: gradient_fn(params, microbatch(0), rng)[1])
    no_metrics = jax.tree.map(lambda m: jnp.zeros(m.shape, m.dtype), metric_shapes)
    (grads, metrics), _ = jax.lax.scan(accumulate, (zeros, no_metrics), jnp.arange(n))
    return grads, metrics


class StepAhead:
    """Compiles a trainer's step while the first state is made and the first batch is read; the first step finds it.

    The first step compiles as it always can where the shapes are not known, and where a trainer's step is not a jitted
    function.

    Args:
      next_shapes: returns the next batch as the step takes it, with shapes in place of data; None if only data can tell
        them.
    """

    def __init__(self, trainer: BaseTrainer, next_shapes: Callable[[], Mapping[str, jax.ShapeDtypeStruct] | None]):
        self._trainer, self._next_shapes = trainer, next_shapes
        self._step: Any = None  # the one that is compiled or being compiled
        self._compiled: Future[Any] | None = None

    def begin(self) -> None:
        """Traces the step, and compiles it in a thread; does nothing the second time.

        Of several processes each compiles when it waits: programs that they run together should come in one order.
        """
        if self._step is None and jax.process_count() == 1 and (compile_it := self._traced()) is not None:
            self._compiled = compiling.begin(compile_it)

    def wait(self) -> None:
        """Returns when the step is compiled, and raises the error if it cannot be."""
        if self._compiled is not None and self._step is self._trainer.train_step:
            self._compiled.result()
        elif (compile_it := self._traced()) is not None:  # not begun, or the rate was scaled since: another step
            compile_it()

    def _traced(self) -> Callable[[], Any] | None:
        """Compiles the step that the trainer has now; None if only data can tell the shapes."""
        step = self._trainer.train_step
        if not hasattr(step, "lower") or (batch := self._next_shapes()) is None:
            return None
        self._step = step
        return step.lower(self._trainer.sharded_state_shapes(), batch).compile
