"""The loop of `limba train`: steps, statistics, evaluations, actions and checkpoints, until the end or a stop."""

import contextlib
import dataclasses
import gc
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from limba import checkpoints, peers, watchdog, writers
from limba import metrics as metrics_lib
from limba.actions import TRAIN_METRIC_KEY, ActionMode, Actions
from limba.data import Batch, BatchIterator, TaskBatches
from limba.goodput import Goodput
from limba.preemption import PREEMPTED_EXIT_CODE, StopRequest
from limba.storage import AnyPath
from limba.train_state import TrainState
from limba.train_statistics import TrainStatistics
from limba.trainer import BaseTrainer
from limba.training_evaluation import TrainingEvaluation

logger = logging.getLogger(__name__)


class NanLossError(RuntimeError):
    """The loss is not a number any more; training on would only spread it."""


@dataclasses.dataclass(frozen=True)
class Periods:
    """Which steps do more than train; the last step does all of it.

    Attributes:
      total_steps: the step to end at.
      evaluation, statistics: steps between them.
      save: says when checkpoints are due; None saves nothing, not even at the end.
      garbage_collection: Python's collector runs at these steps only; 0 leaves it to Python.
    """

    total_steps: int
    evaluation: int
    statistics: int
    save: checkpoints.SaveCheckpointConfig | None
    garbage_collection: int

    def saves(self, step: int) -> bool:
        return self.save is not None and (self.save.is_due(step) or step == self.total_steps)

    def evaluates(self, step: int) -> bool:
        return step % self.evaluation == 0 or step == self.total_steps

    def summarizes(self, step: int) -> bool:
        return step % self.statistics == 0 or step == self.total_steps


@dataclasses.dataclass(frozen=True)
class Run:
    """What the loop needs, once the chapters of `train()` have made it.

    Attributes:
      checkpointer: of `model_dir`.
      batch_size: rows of the global batch.
      tokens_per_step: positions of inputs and targets in the global batch.
      goodput: is told what time is spent on.
      watchdog: when a step that hangs is reported, and ends the run; None watches nothing.
    """

    trainer: BaseTrainer
    batches: BatchIterator
    evaluation: TrainingEvaluation
    actions: Actions
    checkpointer: checkpoints.Checkpointer
    writers: Sequence[writers.MetricWriter]
    run_files: Mapping[str, bytes]
    model_dir: AnyPath
    batch_size: int
    tokens_per_step: int
    periods: Periods
    goodput: Goodput
    watchdog: watchdog.WatchdogConfig | None


def train_loop(run: Run, state: TrainState, first_step: int) -> tuple[int, TrainState]:
    """Steps from `first_step` to the end, with statistics, evaluations and checkpoints in between."""
    periods = run.periods
    if first_step >= periods.total_steps:
        logger.info("The run is at step %d of %d: nothing to train.", first_step, periods.total_steps)
        return first_step, state
    by_task: dict[str, Any] = {}
    if isinstance(run.batches, TaskBatches):  # A stream of a user's own need not know its tasks.
        by_task = {"task_groups": run.batches.task_groups, "epochs": run.batches.epochs}
    statistics = TrainStatistics(run.writers, run.batch_size, run.tokens_per_step, run.goodput.scalars, **by_task)
    step, last_saved = first_step, first_step
    previous: metrics_lib.Metrics | None = None
    ended_early = False
    together = peers.peers()
    if together is not None:
        together.doing = lambda: run.goodput.kind
    describe_others = together.describe_others if together is not None else lambda: ""

    def save_while_reading() -> None:
        """Saves the last step while no batch comes; hosts that train together could only save together."""
        nonlocal last_saved
        if run.goodput.kind == "input" and jax.process_count() == 1 and step > last_saved:
            last_saved = step
            _save(run, state, previous, step)
            run.checkpointer.wait()
            logger.error("No batch came for step %d; step %d is saved.", step + 1, step)

    with (
        StopRequest(together) as stop,
        writers.ProgressBar(periods.total_steps, first_step, run.tokens_per_step) as bar,
        _garbage_collection(periods.garbage_collection) as collect,
        watchdog.Watchdog(run.watchdog, stop.request, save_while_reading, describe_others, peers.leave) as watch,
    ):
        run.goodput.begin_steps()
        while step < periods.total_steps and not stop.is_due(step) and not ended_early:
            began = time.monotonic()
            batch = _next_batch(run, previous, save_while_reading)
            read = time.monotonic()
            with run.goodput.spending("compile" if previous is None else "step"):
                state, metrics = run.trainer.train_step(state, batch)
                if previous is None:  # The first call compiles.
                    jax.block_until_ready(metrics)
            step += 1
            if previous is None:
                seconds = time.monotonic() - read
                statistics.add_first(metrics, seconds, read - began, batch["decoder_target_tokens"].size)
                bar.step()
                bar.message(f"compiled and made the first step in {seconds:.1f} s")
            else:
                # One step stays in flight. The one before is done: reading it delays nothing and finds a NaN early.
                _check_finite(previous, step - 1, run)
                statistics.add(metrics)
                bar.step(shown_loss(previous, run.trainer.model) if bar.wants_loss else None)
            previous = metrics

            if periods.summarizes(step) or stop.is_due(step):
                scalars = statistics.write(step)
                ended_early |= run.actions.run(ActionMode.TRAIN, state, {TRAIN_METRIC_KEY: scalars})
                follow_rate(run)
            # Evaluation comes before the checkpoint: a run killed in between makes it again.
            if periods.evaluates(step) and not stop.is_due(step):
                with statistics.paused(), bar.paused(), watch.paused():
                    ended_early |= evaluate(run, state, step, bar.message)
            if periods.saves(step) or ended_early:
                with statistics.paused(), bar.paused(), watch.paused():
                    _save(run, state, metrics, step)
                last_saved = step
            collect(step)
            run.goodput.step_done(step)
            watch.beat(step)
        stopped = stop.is_due(step)
        if step > last_saved:  # Asked to stop.
            _save(run, state, previous, step)

    with run.goodput.spending("checkpoint"):
        run.checkpointer.wait()
    where = f"saved as {_path(run, step)}" if periods.save is not None else "not saved, as configured"
    if stopped and step < periods.total_steps and not ended_early:
        logger.warning("Stopped on request at step %d; %s.", step, where)
        raise SystemExit(PREEMPTED_EXIT_CODE)
    if ended_early:
        logger.info("An action ended training at step %d of %d; %s.", step, periods.total_steps, where)
    return step, state


def _next_batch(
    run: Run, previous: metrics_lib.Metrics | None, save_while_reading: Callable[[], None]
) -> dict[str, jax.Array]:
    """The next batch on the devices. Where it cannot be read, what was trained so far is saved first."""
    began = time.monotonic()
    with run.goodput.spending("input"):
        try:
            batch: Batch = next(run.batches)
        except Exception:  # Whatever it is goes on to whoever handles it.
            save_while_reading()
            raise
        sharded = run.trainer.partitioner.shard_batch(batch)
    # While the devices were still at the step before, reading cost nothing.
    if previous is not None and not all(leaf.is_ready() for leaf in jax.tree.leaves(previous)):
        run.goodput.move(time.monotonic() - began, "input", "step")
    return sharded


def evaluate(run: Run, state: TrainState, step: int, say: Callable[[str], None]) -> bool:
    """Makes the evaluations of a step and runs their actions; whether one of them ends training."""
    with run.goodput.spending("evaluation"):
        results = run.evaluation.run(state, step, say)
    # All of them run, whatever the first says.
    stops = [run.actions.run(mode, state, tasks) for mode, tasks in results.items()]
    follow_rate(run)
    return any(stops)


def follow_rate(run: Run) -> None:
    """Trains on at the learning rate that the actions want."""
    if run.actions.scale_rate:
        run.trainer.scale_rate(run.actions.rate_scale)  # type: ignore[attr-defined]


@contextlib.contextmanager
def _garbage_collection(period: int) -> Iterator[Callable[[int], Any]]:
    """Yields what is called after each step: with a period, Python's collector runs then and at no other time."""
    if not period:
        yield lambda step: None
        return
    gc.disable()
    try:
        yield lambda step: gc.collect() if step % period == 0 else None
    finally:
        gc.enable()


def shown_loss(metrics: metrics_lib.Metrics, model: Any) -> float:
    """The loss of a target token: T5X's metric of that name divides a loss that is a mean already once more."""
    name = "loss_per_nonpadding_target_token"
    is_mean = getattr(model, "loss_is_mean", False)  # A model of a user's own may not say.
    return float((metrics[name] if name in metrics and not is_mean else metrics["loss"]).compute())


def _check_finite(metrics: metrics_lib.Metrics, step: int, run: Run) -> None:
    loss = float(metrics["loss"].compute())
    if math.isfinite(loss):
        return
    if getattr(run.trainer.model.optimizer_def, "skip_nan_updates", False):
        logger.warning("The loss of step %d is %s; the optimizer left the update out (skip_nan_updates).", step, loss)
        return
    raise _not_finite(run, f"The loss of step {step} is {loss}.")


@jax.jit
def _all_finite(tree: Any) -> jax.Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def _not_finite(run: Run, what: str) -> NanLossError:
    run.checkpointer.wait()
    saved = checkpoints.checkpoint_steps(run.model_dir)
    good = f"The last good checkpoint is {_path(run, saved[-1])}." if saved else "No checkpoint was saved before."
    return NanLossError(
        f"{what} {good} Nothing was saved after it. Usual causes: a learning rate that is too high, missing warm-up "
        "with AdamW, label or token ids outside the vocabulary."
    )


def _path(run: Run, step: int) -> Path:
    return checkpoints.checkpoint_path(run.model_dir, step)


def _save(run: Run, state: TrainState, metrics: metrics_lib.Metrics | None, step: int) -> None:
    """Begins a checkpoint, unless the step has spoiled the state: the loss alone is from before the update."""
    save = run.periods.save
    if save is None:
        return
    began = time.monotonic()
    if metrics is not None:
        _check_finite(metrics, step, run)
    if not bool(_all_finite((state.params, state.opt_state))):
        raise _not_finite(run, f"The update of step {step} made parameters or optimizer state infinite or NaN.")
    layout = run.trainer.partitioner.get_data_layout(run.batch_size)
    keeps_position = save.save_dataset and layout.is_first_host_in_replica_set
    with run.goodput.spending("checkpoint"):
        run.checkpointer.save(state, run.batches.save_state() if keeps_position else None, run.run_files)
    # From here a restart loses nothing.
    run.goodput.write()
    writers.write_timing(run.writers, step, "checkpoint_seconds", time.monotonic() - began)
