"""The loop of `limba train`: steps, statistics, evaluations, actions and checkpoints, until the end or a stop."""

import contextlib
import dataclasses
import functools
import gc
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from limba.checkpoints import checkpointing, run_description
from limba.checkpoints.train_state import TrainState
from limba.data.contract import Batch, BatchIterator, DatasetConfig, ReadingStoppedError, TaskBatches
from limba.files import awaited
from limba.files.storage import AnyPath
from limba.models import metrics as metrics_lib
from limba.network.finite_numbers.layers import NotFiniteError, which_are_finite
from limba.reports import progress, run_lock, writers
from limba.reports.goodput import Goodput
from limba.training import not_finite
from limba.training.actions import TRAIN_METRIC_KEY, ActionMode, Actions
from limba.training.inputs import FirstBatch
from limba.training.periodic_evaluation import TrainingEvaluation
from limba.training.statistics import TrainStatistics
from limba.training.step_ahead import StepAhead
from limba.training.trainer import BaseTrainer
from limba.workers import distributed, heartbeats, watchdog
from limba.workers.preemption import PREEMPTED_EXIT_CODE, StopRequest

logger = logging.getLogger(__name__)

# Seconds after a request to stop that a worker waits for a batch with which all workers could stop together.
_PATIENCE_SECONDS = 10.0
_RESUMES = "; the same command resumes the run"


class NanLossError(NotFiniteError):
    """The loss, the parameters or the optimizer state are not finite; more steps would only spread it."""


@dataclasses.dataclass(frozen=True)
class Periods:
    """Which steps are followed by statistics, an evaluation or a checkpoint; the last step is followed by all of them.

    Attributes:
      total_steps: the step to end at.
      evaluation, statistics: steps between them.
      save: says when checkpoints are due; None saves nothing, not even at the end.
      garbage_collection: Python's collector runs at these steps only; 0 leaves it to Python.
      evaluation_delay: no evaluation comes before this step.
    """

    total_steps: int
    evaluation: int
    statistics: int
    save: checkpointing.SaveCheckpointConfig | None
    garbage_collection: int
    evaluation_delay: int = 0

    def saves(self, step: int) -> bool:
        return self.save is not None and (self.save.is_due(step) or step == self.total_steps)

    def evaluates(self, step: int) -> bool:
        is_due = step % self.evaluation == 0 and step >= self.evaluation_delay
        return is_due or step == self.total_steps

    def summarizes(self, step: int) -> bool:
        return step % self.statistics == 0 or step == self.total_steps


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that the loop needs; `train()` makes it.

    Attributes:
      dataset: of the training stream.
      first_batch: of `batches`.
      step_ahead: compiles the trainer's step.
      run_files: are saved in each checkpoint, with the kernels that steps have compared until then.
      log_every: steps between lines of a log; see `progress.show`.
      watchdog: when a step that hangs is reported, and ends the run; None watches nothing.
    """

    trainer: BaseTrainer
    dataset: DatasetConfig
    batches: BatchIterator
    first_batch: FirstBatch
    step_ahead: StepAhead
    evaluation: TrainingEvaluation
    actions: Actions
    checkpointer: checkpointing.Checkpointer
    lock: run_lock.RunLock
    writers: Sequence[writers.MetricWriter]
    run_files: Mapping[str, bytes]
    model_dir: AnyPath
    periods: Periods
    goodput: Goodput
    log_every: int | None
    watchdog: watchdog.WatchdogConfig | None

    @property
    def tokens_per_step(self) -> int:
        """Positions of inputs and targets in the global batch."""
        return self.dataset.batch_size * sum((self.dataset.task_feature_lengths or {}).values())


def train_loop(run: Run, state: TrainState, first_step: int) -> tuple[int, TrainState]:
    """Steps from `first_step` to the end, with statistics, evaluations and checkpoints in between."""
    periods = run.periods
    if first_step >= periods.total_steps:
        logger.info(
            "%s is already at step %d of %d: nothing is trained. To go on, give more steps (--gin.TRAIN_STEPS=…; "
            "`limba run`: max_steps).",
            *(run.model_dir, first_step, periods.total_steps),
        )
        return first_step, state
    loop = _Loop(run, state, first_step)
    stopped = loop.train()
    with run.goodput.spending("checkpoint"):
        run.checkpointer.wait()
    step = loop.step
    where = f"saved as {_path(run, step)}" if periods.save is not None else "not saved, as configured"
    if stopped and step < periods.total_steps and not loop.ended_early:
        logger.warning("Stopped on request at step %d; %s%s.", step, where, _RESUMES * (periods.save is not None))
        raise SystemExit(PREEMPTED_EXIT_CODE)
    if loop.ended_early:
        logger.info("An action ended training at step %d of %d; %s.", step, periods.total_steps, where)
    return step, loop.state


class _Loop:
    """A run between two steps.

    Attributes:
      state: after `step`.
      step: the last that was made.
      metrics: of `step`, perhaps still in flight; None before the first step of this process.
      batch: of `step`.
      last_saved: the step of the newest checkpoint.
      ended_early: an action ended training.
    """

    def __init__(self, run: Run, state: TrainState, first_step: int):
        self.run, self.state, self.step = run, state, first_step
        self.last_saved, self.ended_early = first_step, False
        self._checked = first_step  # the last step whose loss was looked at
        self.metrics: metrics_lib.Metrics | None = None
        self.batch: dict[str, jax.Array] = {}
        # Who changes the state or saves it. A rescue keeps it until the process ends.
        self._in_hands = threading.Lock()
        self._input_since: float | None = None  # of `_leave_the_others`
        # Seconds of waits for a batch that are no news. Of the first, which fills shuffle buffers, the watchdog tells.
        self._usual_wait = math.inf
        self._batches = itertools.chain(run.first_batch, run.batches)
        # A stream of a user's own need not know its tasks.
        by_task = (run.batches.task_groups, run.batches.epochs) if isinstance(run.batches, TaskBatches) else ()
        self._statistics = TrainStatistics(
            run.writers, run.dataset.batch_size, run.tokens_per_step, run.goodput.scalars, *by_task
        )

    def train(self) -> bool:
        """Makes the steps; whether a request to stop came, in which case the last step is saved too."""
        run, last_step = self.run, self.run.periods.total_steps
        heartbeat = heartbeats.of_this_process()
        if heartbeat is not None:
            heartbeat.activity = lambda: run.goodput.kind
        describe_others = heartbeat.describe_others if heartbeat is not None else lambda: ""
        with (
            StopRequest(heartbeat, self._stop_waiting, self._leave_if_blocked) as stop,
            progress.show(last_step, self.step, run.tokens_per_step, run.log_every) as bar,
            _garbage_collection(run.periods.garbage_collection) as collect,
            watchdog.Watchdog(
                run.watchdog, stop.request, self._save_while_reading, describe_others, heartbeats.leave
            ) as watch,
        ):
            run.goodput.begin_steps()
            while self.step < last_step and not stop.is_due(self.step) and not self.ended_early:
                run.checkpointer.check()
                run.lock.check()
                try:
                    self._make_step(bar, watch)
                    self._do_what_is_due(stop, bar, watch)
                except ReadingStoppedError:
                    logger.info("Asked to stop while waiting: step %d is the last.", self.step)
                    break
                collect(self.step)
                run.goodput.step_done(self.step)
                watch.beat(self.step)
            stopped = stop.is_due(self.step)
            if self.step > self.last_saved:  # Asked to stop.
                self._save()
        return stopped

    def _make_step(self, bar: progress.Progress, watch: watchdog.Watchdog) -> None:
        """Reads a batch and updates the state. The metrics that are shown are those of the step before."""
        run, previous, previous_batch = self.run, self.metrics, self.batch
        compiling = time.monotonic()
        if previous is None:
            bar.message("compiling the training step")
            with run.goodput.spending("compile"):
                run.step_ahead.wait()
        began = time.monotonic()
        with watch.first_wait() if previous is None else contextlib.nullcontext():
            batch = self._next_batch()
        read = time.monotonic()
        with run.goodput.spending("compile" if previous is None else "step"), self._in_hands:
            self.state, metrics = run.trainer.train_step(self.state, batch)
            if previous is None:  # The first call compiles.
                jax.block_until_ready(metrics)
            self.step, self.metrics, self.batch = self.step + 1, metrics, batch
        if previous is None:
            seconds = time.monotonic() - read + began - compiling
            self._statistics.add_first(metrics, seconds, read - began, batch["decoder_target_tokens"].size)
            bar.message(f"compiled and made the first step in {seconds:.1f} s")
            bar.step(lambda: shown_figures(metrics), None)
        else:
            # One step stays in flight. The one before is done: reading it delays nothing and finds a NaN early.
            self._check_loss(previous, self.step - 1, previous_batch)
            self._statistics.add(metrics)
            bar.step(*(functools.partial(shown_figures, x) for x in (metrics, previous)))

    def _next_batch(self) -> dict[str, jax.Array]:
        """The next batch on the devices. If it cannot be read, the last step is saved first."""
        run = self.run
        began = time.monotonic()
        with run.goodput.spending("input"):
            try:
                with awaited.named(f"a batch of {run.dataset.name!r} for step {self.step + 1}", self._usual_wait):
                    batch: Batch = next(self._batches)
            except ReadingStoppedError:
                raise
            except Exception:  # Whatever it is, the caller gets it.
                self._save_while_reading()
                raise
            self._usual_wait = 0.0 if self.metrics is None else max(self._usual_wait, 2 * (time.monotonic() - began))
            sharded = run.trainer.partitioner.shard_batch(batch)
        # While the devices were still at the step before, reading cost nothing.
        if self.metrics is not None and not all(leaf.is_ready() for leaf in jax.tree.leaves(self.metrics)):
            run.goodput.move(time.monotonic() - began, "input", "step")
        return sharded

    def _do_what_is_due(self, stop: StopRequest, bar: progress.Progress, watch: watchdog.Watchdog) -> None:
        """Statistics, evaluation and checkpoint of the step that was just made."""
        run, step, statistics = self.run, self.step, self._statistics
        if run.periods.evaluates(step):  # which waits for the step, and would find what the step has done
            self._check_loss(self.metrics, step, self.batch)
        if run.periods.summarizes(step) or stop.is_due(step):
            scalars = statistics.write(step)
            self.ended_early |= run.actions.run(ActionMode.TRAIN, self.state, {TRAIN_METRIC_KEY: scalars})
            follow_rate(run)
        # Evaluation comes before the checkpoint: a run killed in between makes it again.
        if run.periods.evaluates(step) and not stop.is_due(step):
            # Workers evaluate together, so one of them alone cannot leave.
            check = _raise_if_requested(stop) if jax.process_count() == 1 else None
            with statistics.paused(), bar.paused(), watch.paused():
                self.ended_early |= evaluate(run, self.state, step, bar.message, check)
        if run.periods.saves(step) or self.ended_early:
            with statistics.paused(), bar.paused(), watch.paused():
                self._save()

    def _save(self) -> None:
        with self._in_hands:
            self._begin_checkpoint()
        self.last_saved = self.step

    def _begin_checkpoint(self) -> None:
        """Begins a checkpoint if the state is finite. The loss cannot show that: it is from before the update."""
        run, step, save = self.run, self.step, self.run.periods.save
        self._check_loss(self.metrics, step, self.batch)
        if save is None:
            return
        began = time.monotonic()
        if not all(which_are_finite(jax.tree.leaves((self.state.params, self.state.opt_state)))):
            what = f"The update of step {step} made parameters or optimizer state infinite or NaN."
            raise self._not_finite(what, step, self.batch)
        layout = run.trainer.partitioner.get_data_layout(run.dataset.batch_size)
        keeps_position = save.save_dataset and layout.is_first_host_in_replica_set
        with run.goodput.spending("checkpoint"):
            position = run.batches.save_state() if keeps_position else None
            run.checkpointer.save(self.state, position, run_description.with_kernels(run.run_files))
        # From here a restart loses nothing.
        run.goodput.write()
        writers.write_timing(run.writers, step, "checkpoint_seconds", time.monotonic() - began)

    def _check_loss(self, metrics: metrics_lib.Metrics | None, step: int, batch: Batch) -> None:
        """Raises NanLossError if the loss of a step and its batch is not finite."""
        if metrics is None or step == self._checked:
            return
        self._checked = step
        if math.isfinite(loss := float(metrics["loss"].compute())):
            return
        if not getattr(self.run.trainer.model.optimizer_def, "skip_nan_updates", False):
            raise self._not_finite(f"The loss of step {step} is {loss}.", step, batch)
        logger.warning("The loss of step %d is %s; the optimizer left the update out (skip_nan_updates).", step, loss)

    def _not_finite(self, what: str, step: int, batch: Batch) -> NanLossError:
        run = self.run
        run.checkpointer.wait()
        saved = checkpointing.checkpoint_steps(run.model_dir)
        good = f"The last good checkpoint is {_path(run, saved[-1])}." if saved else "No checkpoint was saved before."
        where = not_finite.describe(run.trainer, self.state, step, batch)
        return NanLossError(f"{what} {good} Nothing was saved after it. {where}")

    def _stop_waiting(self) -> None:
        """Ends a wait for a batch, after a signal; workers that train together still need theirs to stop together."""
        if jax.process_count() == 1:
            for source in (self.run.first_batch, self.run.batches):
                getattr(source, "stop_waiting", lambda: None)()

    def _leave_if_blocked(self) -> None:
        """Ends the process if the main thread still waits some seconds after a signal; a single one saves first.

        It may compile, or wait in a library for a batch or an evaluation.
        """
        run = self.run
        if jax.process_count() > 1:
            self._leave_the_others()
            return
        if run.goodput.kind not in ("input", "compile", "evaluation"):
            return
        # The first step, with which compiling counts, holds the state; there is nothing of it to save.
        nothing_made = run.goodput.kind == "compile" and self.metrics is None
        if not nothing_made and not self._in_hands.acquire(blocking=False):
            return
        if self.step > self.last_saved:
            self._begin_checkpoint()
            run.checkpointer.wait()
        logger.warning("Stopped on request at step %d, while it waited (%s)%s.", self.step, run.goodput.kind, _RESUMES)
        heartbeats.leave_at_once(PREEMPTED_EXIT_CODE)

    def _leave_the_others(self) -> None:
        """Ends all workers if this one waits for a batch: without it the others cannot end their step, nor save."""
        if self.run.goodput.kind != "input":
            self._input_since = None
            return
        self._input_since = self._input_since or time.monotonic()
        heartbeat = heartbeats.of_this_process()
        if heartbeat is not None and time.monotonic() - self._input_since > _PATIENCE_SECONDS:
            message = (
                f"it was asked to stop while it waited for a batch, which did not come; steps after the newest "
                f"checkpoint of {self.run.model_dir} are lost"
            )
            logger.error("This worker ends: %s.", message)
            heartbeat.fail(message, PREEMPTED_EXIT_CODE)
            heartbeats.leave_at_once(PREEMPTED_EXIT_CODE)

    def _save_while_reading(self) -> None:
        """Saves the last step while no batch comes; hosts that train together could only save together."""
        run, step = self.run, self.step
        if run.goodput.kind == "input" and jax.process_count() == 1 and step > self.last_saved:
            self._save()
            run.checkpointer.wait()
            logger.error("No batch came for step %d; step %d is saved.", step + 1, step)


def _raise_if_requested(stop: StopRequest) -> Callable[[], None]:
    """A function that raises `ReadingStoppedError` once a stop is requested."""

    def check() -> None:
        if stop.is_requested:
            raise ReadingStoppedError

    return check


def evaluate(
    run: Run, state: TrainState, step: int, say: Callable[[str], None], check: Callable[[], None] | None = None
) -> bool:
    """Makes the evaluations of a step and runs their actions; whether one of them ends training.

    Args:
      check: called before each batch; it may raise.
    """
    with run.goodput.spending("evaluation"):
        results = run.evaluation.run(state, step, say, check or (lambda: None))
    # All of them run, even if the first ends training.
    stops = [run.actions.run(mode, state, tasks) for mode, tasks in results.items()]
    follow_rate(run)
    return any(stops)


def evaluation_is_due(run: Run, first_step: int, resumed: bool, run_eval_before_training: bool) -> bool:
    """Whether to evaluate before the first step: a new run on request, or a run that was stopped before it did."""
    folder = run.evaluation.last_folder
    if folder is None:
        return False
    if not resumed:
        return run_eval_before_training
    if not (run.periods.evaluates(first_step) or first_step > run.periods.total_steps):
        return False
    return not distributed.from_first(
        "last evaluation", lambda: any(x["step"] == first_step for x in writers.read_metrics(run.model_dir, folder))
    )


def follow_rate(run: Run) -> None:
    """Sets the learning rate that the actions want."""
    if run.actions.scale_rate:
        run.trainer.scale_rate(run.actions.rate_scale)


@contextlib.contextmanager
def _garbage_collection(period: int) -> Iterator[Callable[[int], Any]]:
    """Yields a function to call after each step. With a period, Python's garbage collector runs only in there."""
    if not period:
        yield lambda step: None
        return
    gc.disable()
    try:
        yield lambda step: gc.collect() if step % period == 0 else None
    finally:
        gc.enable()


def shown_figures(metrics: metrics_lib.Metrics) -> progress.Figures:
    """The loss of a target token, of a model of a user's own by T5X's metric if it has one, and the learning rate."""
    names = (metrics_lib.MEAN, "loss_per_nonpadding_target_token", "loss")
    figures = {"loss": next(metrics[name] for name in names if name in metrics)}
    if "learning_rate/current" in metrics:
        figures["learning rate"] = metrics["learning_rate/current"]
    return {name: float(x.compute()) for name, x in figures.items()}


def _path(run: Run, step: int) -> Path:
    return checkpointing.checkpoint_path(run.model_dir, step)
