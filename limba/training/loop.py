"""The loop of `limba train`: batch, step, metrics, evaluation, checkpoint, until the end or a stop.

What rescues a run that is asked to stop, waits or hangs is in `limba/training/rescue.py`.
"""

import contextlib
import copy
import functools
import gc
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax

from limba.checkpoints import checkpointing, run_description
from limba.checkpoints.train_state import TrainState
from limba.data.contract import Batch, DatasetConfig, ReadingStoppedError, TaskBatches
from limba.files import setting_names
from limba.models import metrics as metrics_lib
from limba.network.finite_numbers.layers import NotFiniteError, which_are_finite
from limba.reports import progress, run_directory, run_end, writers
from limba.training import first_rows, not_finite, rescue
from limba.training.actions import TRAIN_METRIC_KEY, ActionMode
from limba.training.run import Run
from limba.training.statistics import TrainStatistics
from limba.workers import distributed
from limba.workers.preemption import PREEMPTED_EXIT_CODE

logger = logging.getLogger(__name__)

# Pauses between steps that come again.
_EVALUATION, _CHECKPOINT = "evaluation", "checkpoint"

_P = ParamSpec("_P")
_T = TypeVar("_T")


class NanLossError(NotFiniteError):
    """The loss, the parameters or the optimizer state are not finite; more steps would only spread it."""


def start_again_after_spikes(train: Callable[_P, _T]) -> Callable[_P, _T]:
    """A decorator of `train()`: calls it again, with the actions that it had, as long as it goes back."""

    @functools.wraps(train)
    def repeated(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        actions: Any = kwargs.get("actions")
        while True:
            if kwargs.get("spikes") is not None:
                kwargs["actions"] = copy.deepcopy(actions)  # they remember metrics of steps that are made again
            try:
                return train(*args, **kwargs)
            except run_end.StartsAgainError:
                pass  # With the error goes its traceback, which holds the old state.

    return repeated


def train_loop(run: Run, state: TrainState, resumed: bool, run_eval_before_training: bool) -> tuple[int, TrainState]:
    """Steps from that of the state to the end, with statistics, evaluations and checkpoints in between."""
    periods, first_step = run.periods, int(state.step)
    follow_rate(run)  # the rate at which an earlier start of this run ended
    evaluates = evaluation_is_due(run, first_step, resumed, run_eval_before_training)
    if evaluates and evaluate(run, state, first_step, logger.info):
        logger.info("An action ended training before its first step, at step %d.", first_step)
        return first_step, state
    if first_step >= periods.total_steps:
        logger.info(
            "%s is already at step %d of %d: nothing is trained. To go on, give more steps: %s.",
            run.model_dir,
            first_step,
            periods.total_steps,
            setting_names.shown("--gin.TRAIN_STEPS=…"),
        )
        return first_step, state
    loop = _Loop(run, state, first_step)
    stopped = loop.train()
    with run.goodput.spending("checkpoint"):
        run.checkpointer.wait()
    step = loop.step
    where = f"saved as {_path(run, step)}" if periods.save is not None else "not saved, as configured"
    if stopped and step < periods.total_steps and not loop.ended_early:
        resumes = rescue.RESUMES if periods.save is not None else ""
        logger.warning("Stopped on request at step %d; %s%s.", step, where, resumes)
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
        self.metrics: metrics_lib.Metrics | None = None
        self.batch: dict[str, jax.Array] = {}
        self._checked = first_step  # the last step whose loss was looked at
        self._batches = itertools.chain(run.first_batch, run.batches)
        # A stream of a user's own need not know its tasks.
        batches = run.batches
        by_task = (lambda: batches.task_groups, batches.epochs) if isinstance(batches, TaskBatches) else ()
        self._stage = run.stage
        self._statistics = TrainStatistics(
            run.writers, self._stage.batch_size, run.tokens_per_step, run.goodput.scalars, *by_task
        )
        self._rescue = rescue.Rescue(self)
        self._bar: progress.Progress

    def train(self) -> bool:
        """Makes the steps; whether a request to stop came, in which case the last step is saved too."""
        run, last_step = self.run, self.run.periods.total_steps
        pauses_due = {_EVALUATION: run.periods.evaluations_after, _CHECKPOINT: run.periods.saves_after}
        with (
            self._rescue,
            progress.show(last_step, self.step, run.tokens_per_step, run.log_every, pauses_due) as self._bar,
            _garbage_collection(run.periods.garbage_collection) as collect,
            self._stopping_before_going_back(),
        ):
            run.goodput.begin_steps()
            while self.step < last_step and not self._rescue.stop_is_due() and not self.ended_early:
                run.checkpointer.check()
                run.lock.check()
                try:
                    if self.metrics is None:
                        self._make_first_step()
                    else:
                        self._make_step()
                    self._write_statistics_if_due()
                    # Evaluation comes before the checkpoint: a run killed in between makes it again.
                    self._evaluate_if_due()
                    self._save_if_due()
                except ReadingStoppedError:
                    logger.info("Asked to stop while waiting: step %d is the last.", self.step)
                    break
                collect(self.step)
                run.goodput.step_done(self.step)
                self._rescue.step_done()
            stopped = self._rescue.stop_is_due()
            if self.step > self.last_saved:  # Asked to stop.
                self.save()
        return stopped

    @contextlib.contextmanager
    def _stopping_before_going_back(self) -> Iterator[None]:
        """A context in which a request to stop ends the process even if the run was to start again by itself."""
        try:
            yield
        except run_end.StartsAgainError:
            if not self._rescue.stop_is_due():
                raise
            logger.warning("Stopped on request at step %d%s.", self.step, rescue.RESUMES)
            raise SystemExit(PREEMPTED_EXIT_CODE) from None

    # ------------------------------------------------------- batch ---------------------------------------------------

    def _next_batch(self) -> dict[str, jax.Array]:
        """The next batch on the devices. If it cannot be read, the last step is saved first."""
        run, began = self.run, time.monotonic()
        with run.goodput.spending("input"):
            with self._rescue.waiting():
                batch: Batch = next(self._batches)
            sharded = run.trainer.partitioner.shard_batch(batch)
        # While the devices were still at the step before, reading cost nothing.
        if self.metrics is not None and not all(leaf.is_ready() for leaf in jax.tree.leaves(self.metrics)):
            run.goodput.move(time.monotonic() - began, "input", "step")
        return sharded

    # ------------------------------------------------------- step ----------------------------------------------------

    def _make_first_step(self) -> None:
        """The first step of this process, which compiles; nothing is in flight after it."""
        began = time.monotonic()
        self._bar.message("compiling the training step")
        with self.run.goodput.spending("compile"):
            self.run.step_ahead.wait()
        asked = time.monotonic()
        with self._rescue.first_wait():
            batch = self._next_batch()
        first_rows.write(self.run.model_dir, self.run.trainer.model, self.run.first_batch.taken, self.step + 1)
        waited = time.monotonic() - asked
        metrics = self._update(batch, "compile")
        seconds = time.monotonic() - began - waited
        self._statistics.add_first(metrics, seconds, waited, batch["decoder_target_tokens"].size)
        self._bar.message(f"compiled and made the first step in {seconds:.1f} s")
        self._bar.step(lambda: shown_figures(metrics), None)

    def _make_step(self) -> None:
        """Reads a batch and updates the state. The metrics that are shown are those of the step before."""
        previous, previous_batch = self.metrics, self.batch
        assert previous is not None
        batch = self._next_batch()
        if self.run.stage is self._stage:
            metrics = self._update(batch, "step")
        else:
            metrics = self._make_first_step_of_a_stage(batch)
        # One step stays in flight. The one before is done: reading it delays nothing and finds a NaN early.
        self._check_loss(previous, self.step - 1, previous_batch)
        self._statistics.add(metrics)
        self._bar.step(*(functools.partial(shown_figures, x) for x in (metrics, previous)))

    def _make_first_step_of_a_stage(self, batch: dict[str, jax.Array]) -> metrics_lib.Metrics:
        """A step whose batch may have other shapes, or other tasks, than the ones before: then it compiles."""
        run, targets = self.run, batch["decoder_target_tokens"]
        self._check_loss(self.metrics, self.step, self.batch)  # as one of its own stage
        self._statistics.write(self.step)  # Losses by task are of this stage's tasks.
        self._stage, self._bar.tokens_per_step = run.stage, run.tokens_per_step
        self._statistics.begin_stage(self._stage.batch_size, run.tokens_per_step, targets.size)
        self._bar.message(f"the first step of stage {self._stage.name!r}, with batches of {targets.shape[0]} rows")
        with self._paused():
            return self._update(batch, "compile")

    def _update(self, batch: dict[str, jax.Array], kind: str) -> metrics_lib.Metrics:
        """The one jitted call of a step. `kind` is what its time counts as; a call that compiles is waited for."""
        with self.run.goodput.spending(kind), self._rescue.in_hands:
            self.state, metrics = self.run.trainer.train_step(self.state, batch)
            if kind == "compile":
                jax.block_until_ready(metrics)
            self.step, self.metrics, self.batch = self.step + 1, metrics, batch
        return metrics

    # ------------------------------------------------------ metrics --------------------------------------------------

    def _write_statistics_if_due(self) -> None:
        """Writes what the steps since the last line have summed up, and runs the actions that look at it."""
        run, step = self.run, self.step
        if run.periods.evaluates(step):  # which waits for the step, and would find what the step has done
            self._check_loss(self.metrics, step, self.batch)
        if run.periods.summarizes(step) or self._rescue.stop_is_due():
            scalars = self._statistics.write(step)
            self.ended_early |= run.actions.run(ActionMode.TRAIN, self.state, {TRAIN_METRIC_KEY: scalars})
            follow_rate(run)

    def _check_loss(self, metrics: metrics_lib.Metrics | None, step: int, batch: Batch) -> None:
        """Raises NanLossError if the loss of a step and its batch is not finite, or `StartsAgainError` at a spike."""
        if metrics is None or step == self._checked:
            return
        self._checked = step
        if self.run.spikes is not None:
            if reason := self.run.spikes.see(step, metrics, _name_of(self._stage)):
                raise self._not_finite(f"Step {step} is a spike: {reason}.", step, batch, reason)
            return
        if math.isfinite(loss := float(metrics["loss"].compute())):
            return
        if not getattr(self.run.trainer.model.optimizer_def, "skip_nan_updates", False):
            raise self._end_of_run(f"The loss of step {step} is {loss}.", step, batch)
        logger.warning("The loss of step %d is %s; the optimizer left the update out (skip_nan_updates).", step, loss)

    def _not_finite(self, what: str, step: int, batch: Batch, reason: str) -> Exception:
        if self.run.spikes is None:
            return self._end_of_run(what, step, batch)
        return self.run.spikes.go_back(step, reason, lambda: self._end_of_run(what, step, batch))

    def _end_of_run(self, what: str, step: int, batch: Batch) -> NanLossError:
        run = self.run
        run.checkpointer.wait()
        saved = checkpointing.checkpoint_steps(run.model_dir)
        good = f"The last good checkpoint is {_path(run, saved[-1])}." if saved else "No checkpoint was saved before."
        where = not_finite.describe(run.trainer, self.state, step, batch)
        return NanLossError(f"{what} {good} Nothing was saved after it. {where}")

    @contextlib.contextmanager
    def _paused(self, kind: str | None = None) -> Iterator[None]:
        """A context whose time is not that of a step, for the rates, the bar and the watchdog."""
        with self._statistics.paused(), self._bar.paused(kind), self._rescue.paused():
            yield

    # ----------------------------------------------------- evaluation ------------------------------------------------

    def _evaluate_if_due(self) -> None:
        if self.run.periods.evaluates(self.step) and not self._rescue.stop_is_due():
            with self._paused(_EVALUATION):
                self.ended_early |= evaluate(
                    self.run, self.state, self.step, self._bar.message, self._rescue.check_evaluation
                )

    # ----------------------------------------------------- checkpoint ------------------------------------------------

    def _save_if_due(self) -> None:
        if self.run.periods.saves(self.step) or self.ended_early:
            with self._paused(_CHECKPOINT):
                self.save()

    def save(self) -> None:
        """Begins a checkpoint of the last step."""
        with self._rescue.in_hands:
            self.begin_checkpoint()
        self.last_saved = self.step

    def begin_checkpoint(self) -> None:
        """Begins a checkpoint if the state is finite. The loss cannot show that: it is from before the update."""
        run, step, save = self.run, self.step, self.run.periods.save
        self._check_loss(self.metrics, step, self.batch)
        if save is None:
            return
        began = time.monotonic()
        if not all(which_are_finite(jax.tree.leaves((self.state.params, self.state.opt_state)))):
            reason = "made parameters or optimizer state infinite or NaN"
            raise self._not_finite(f"The update of step {step} {reason}.", step, self.batch, f"its update {reason}")
        layout = run.trainer.partitioner.get_data_layout(self._stage.batch_size)
        keeps_position = save.save_dataset and layout.is_first_host_in_replica_set
        with run.goodput.spending("checkpoint"):
            run_directory.copy_before_checkpoint(run.writers)
            position = run.batches.save_state() if keeps_position else None
            spikes = run.spikes.state_files() if run.spikes is not None else {}
            run.checkpointer.save(self.state, position, run_description.with_kernels(run.run_files) | spikes)
        # From here a restart loses nothing.
        run.goodput.write()
        writers.write_timing(run.writers, step, "checkpoint_seconds", time.monotonic() - began)


def evaluate(
    run: Run, state: TrainState, step: int, say: Callable[[str], None], check: Callable[[], None] = lambda: None
) -> bool:
    """Makes the evaluations of a step and runs their actions; whether one of them ends training.

    Args:
      check: called before each batch; it may raise.
    """
    with run.goodput.spending("evaluation"):
        results = run.evaluation.run(state, step, say, check)
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


def _name_of(stage: DatasetConfig) -> str:
    """A text that is the same in each start of a run, and another for another stage."""
    return f"{stage.name} {stage.split} {dict(stage.task_feature_lengths or {})} {stage.batch_size}"


def shown_figures(metrics: metrics_lib.Metrics) -> progress.Figures:
    """The loss of a target token, of a model of a user's own by T5X's metric if it has one, and the learning rate."""
    names = (metrics_lib.MEAN, "loss_per_nonpadding_target_token", "loss")
    figures = {"loss": next(metrics[name] for name in names if name in metrics)}
    if "learning_rate/current" in metrics:
        figures["learning rate"] = metrics["learning_rate/current"]
    return {name: float(x.compute()) for name, x in figures.items()}


def _path(run: Run, step: int) -> Path:
    return checkpointing.checkpoint_path(run.model_dir, step)
