"""A run of `train()`: everything that its loop works with, and when what is due."""

import dataclasses
from collections.abc import Mapping, Sequence

from limba.checkpoints import checkpointing
from limba.data.contract import BatchIterator, DatasetConfig
from limba.files.storage import AnyPath
from limba.reports import run_lock, writers
from limba.reports.goodput import Goodput
from limba.training import inputs
from limba.training.actions import Actions
from limba.training.periodic_evaluation import TrainingEvaluation
from limba.training.spike_guard import Spikes
from limba.training.trainer import BaseTrainer, StepAhead
from limba.workers.watchdog import WatchdogConfig


@dataclasses.dataclass(frozen=True)
class Periods:
    """Which steps are followed by statistics, an evaluation or a checkpoint; the last step is followed by all of them.

    Attributes:
      total_steps: the step to end at.
      evaluation: steps between them.
      statistics: likewise; None is the shortest of the other periods.
      save: says when checkpoints are due; None saves nothing, not even at the end.
      garbage_collection: Python's collector runs at these steps only; 0 leaves it to Python.
      evaluation_delay: no evaluation comes before this step.
    """

    total_steps: int
    evaluation: int
    statistics: int | None
    save: checkpointing.SaveCheckpointConfig | None
    garbage_collection: int
    evaluation_delay: int = 0

    def saves(self, step: int) -> bool:
        return self.save is not None and (self.save.is_due(step) or step == self.total_steps)

    def evaluates(self, step: int) -> bool:
        is_due = step % self.evaluation == 0 and step >= self.evaluation_delay
        return is_due or step == self.total_steps

    def evaluations_after(self, step: int) -> int:
        """How many evaluations come after a step."""
        before_last = max(self.total_steps - 1, 0) // self.evaluation
        due = max(before_last - max(step, self.evaluation_delay - 1) // self.evaluation, 0)
        return due + (step < self.total_steps)

    def saves_after(self, step: int) -> int:
        """How many checkpoints come after a step."""
        if self.save is None or step >= self.total_steps:
            return 0
        period, last = self.save.period, self.total_steps - 1
        regular = last // period - step // period if period else 0
        others = {x for x in self.save.checkpoint_steps or () if step < x <= last and not (period and x % period == 0)}
        return regular + len(others) + 1

    def summarizes(self, step: int) -> bool:
        return step % (self.statistics or self._shortest) == 0 or step == self.total_steps

    @property
    def _shortest(self) -> int:
        of_save = self.save.period if self.save is not None else None
        return min(filter(None, (self.evaluation, of_save, self.garbage_collection, self.total_steps)))


@dataclasses.dataclass(frozen=True)
class Run:
    """Everything that the loop needs; `train()` makes it.

    Attributes:
      dataset: of the training stream, with its stages.
      first_batch: of `batches`.
      step_ahead: compiles the trainer's step.
      run_files: are saved in each checkpoint, with the kernels that steps have compared until then.
      log_every: steps between lines of a log; see `progress.show`.
      watchdog: when a step that hangs is reported, and ends the run; None watches nothing.
      spikes: where the run goes back at a spike; None ends it at a loss that is not finite.
    """

    trainer: BaseTrainer
    dataset: DatasetConfig
    batches: BatchIterator
    first_batch: inputs.FirstBatch
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
    watchdog: WatchdogConfig | None
    spikes: Spikes | None = None

    @property
    def stage(self) -> DatasetConfig:
        """The configuration of the last batch that was read, or before that of the next."""
        return inputs.stage(self.batches, self.dataset)

    @property
    def tokens_per_step(self) -> int:
        """Positions of inputs and targets in the global batch of the present stage."""
        return self.stage.batch_size * sum((self.stage.task_feature_lengths or {}).values())
