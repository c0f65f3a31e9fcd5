"""What a run does with its metrics besides writing them: it stops early, drops the learning rate, or runs your code.

`train(actions={"TRAIN_EVAL": [EarlyStoppingAction(("my_task", "accuracy"), "max")]})`; the keys name an `ActionMode`.
An action runs whenever there are metrics of its mode: `TRAIN` every `stats_period` steps with the metrics of the task
"train", `TRAIN_EVAL` and `INFER_EVAL` after each evaluation. Host 0 decides for all.
"""

import abc
import collections
import difflib
import enum
import itertools
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from limba.checkpoints.train_state import TrainState
from limba.files import number_ranges
from limba.files.number_ranges import Range
from limba.reports import writers
from limba.workers import distributed

logger = logging.getLogger(__name__)

TRAIN_METRIC_KEY = "train"


class Scalar(float):
    """A metric's value; `.value` is how T5X's actions read it."""

    @property
    def value(self) -> float:
        return float(self)


MetricsByTask = Mapping[str, Mapping[str, float]]


class ActionMode(enum.Enum):
    """Which metrics an action runs on."""

    TRAIN = 1
    TRAIN_EVAL = 2
    INFER_EVAL = 3


class BaseAction(abc.ABC):
    """Something done with the metrics of each period or evaluation.

    Attributes:
      rate_scale: factor of the learning rate from now on.
    """

    rate_scale = 1.0

    @abc.abstractmethod
    def run(self, train_state: TrainState, metrics_by_task: MetricsByTask) -> bool:
        """Whether training is to end, given a state and its metrics; those of training are of the task "train"."""

    def resume(self, past: Sequence[MetricsByTask]) -> None:  # noqa: B027 (not every action has a memory)
        """Called once in a resumed run, with the metrics of its earlier periods or evaluations, oldest first."""


class _MonitoringAction(BaseAction):
    """Looks at one metric of one task."""

    def __init__(self, task: str, metric: str):
        self.task = task
        self.metric = metric

    def _value(self, metrics_by_task: MetricsByTask) -> float | None:
        """The metric, or None, with a warning, where a period or an evaluation does not have it."""
        name = type(self).__name__
        metrics = metrics_by_task.get(self.task)
        if metrics is None:
            logger.warning("%s watches task %r, and there are %s.", name, self.task, sorted(metrics_by_task))
            return None
        value = metrics.get(self.metric)
        if not isinstance(value, (float, int, np.number, np.ndarray, jax.Array)) or np.size(value) != 1:
            nearest = difflib.get_close_matches(self.metric, metrics, n=3) or sorted(metrics)
            logger.warning("%s watches %r of %s, which has %s.", name, self.metric, self.task, ", ".join(nearest))
            return None
        return float(value)


class _ImprovementAction(_MonitoringAction):
    """Looks whether a metric improves: by more than `atol + rtol * |value before|`."""

    def __init__(self, metric: tuple[str, str], mode: str, patience: int, least: int, atol: float, rtol: float):
        action = type(self).__name__
        if not isinstance(metric, tuple | list) or len(metric) != 2 or not all(isinstance(x, str) for x in metric):
            raise ValueError(f"{action}.metric is {metric!r}; give task and metric, such as ('my_task', 'accuracy').")
        if mode not in ("min", "max"):
            raise ValueError(f"{action}.mode is {mode!r}; use 'min' or 'max'.")
        number_ranges.check(f"{action}.patience", patience, Range(least, is_whole=True), ", in measurements")
        if not (atol >= 0 and rtol >= 0):
            raise ValueError(f"{action}.atol and rtol are {atol} and {rtol}; they must not be negative.")
        super().__init__(*metric)
        self._sign = 1.0 if mode == "max" else -1.0
        self._patience, self._atol, self._rtol = patience, atol, rtol

    def _improves(self, before: float, after: float) -> bool:
        return self._sign * (after - before) > self._atol + self._rtol * abs(before)

    def _values(self, past: Sequence[MetricsByTask]) -> list[float]:
        values = [metrics.get(self.task, {}).get(self.metric) for metrics in past]
        return [float(value) for value in values if value is not None]


class EarlyStoppingAction(_ImprovementAction):
    """Ends training when a metric has not improved over `patience` measurements in a row.

    Each of the last `patience` values is compared with the one before it, and an improvement must be more than
    `atol + rtol * |value before|`; so a metric that gets worse and better in turns does not end training. A resumed
    run remembers the values it saw.

    Args:
      metric: (task, name of the metric), such as `("glue_cola_v002", "accuracy")`.
      mode: "min" if smaller is better, "max" if larger is.
      patience: measurements, at least 2.
      atol, rtol: absolute change, and share of the value before, that do not count as an improvement.

    Raises:
      ValueError: for another mode, a patience below 2, a negative tolerance.
    """

    def __init__(
        self, metric: tuple[str, str], mode: str, patience: int = 3, atol: float = 0.0, rtol: float = 0.0
    ) -> None:
        super().__init__(metric, mode, patience, 2, atol, rtol)
        self._history: collections.deque[float] = collections.deque(maxlen=patience)

    def run(self, train_state: TrainState, metrics_by_task: MetricsByTask) -> bool:
        value = self._value(metrics_by_task)
        if value is None:
            return False
        self._history.append(value)
        values = list(self._history)
        if len(values) < self._patience or any(itertools.starmap(self._improves, itertools.pairwise(values))):
            return False
        logger.info("%s of %s does not improve any more: %s.", self.metric, self.task, values)
        return True

    def resume(self, past: Sequence[MetricsByTask]) -> None:
        self._history.extend(self._values(past))


class _BestAction(_ImprovementAction):
    """Counts the measurements since the best one; one that is not finite is left out."""

    def __init__(self, metric: tuple[str, str], mode: str, patience: int, atol: float, rtol: float):
        super().__init__(metric, mode, patience, 1, atol, rtol)
        self._best: float | None = None
        self._without_improvement = 0

    def _is_stale(self, value: float) -> bool:
        """Whether this is at least the `patience`th measurement in a row that is no improvement on the best."""
        if not math.isfinite(value):
            return False
        if self._best is None or self._improves(self._best, value):
            self._best, self._without_improvement = value, 0
            return False
        self._without_improvement += 1
        return self._without_improvement >= self._patience


class StopOnPlateauAction(_BestAction):
    """Ends training when a metric has not improved on its best for `patience` measurements.

    That is Hugging Face's early stopping; `EarlyStoppingAction`, T5X's, compares each measurement with the one before
    it. A resumed run remembers the values it saw.

    Args:
      metric: (task, name of the metric).
      mode: "min" if smaller is better, "max" if larger is.
      patience: measurements in a row without an improvement.
      atol, rtol: absolute change, and share of the best, that do not count as an improvement.

    Raises:
      ValueError: for another mode, a patience below 1, a negative tolerance.
    """

    def __init__(
        self, metric: tuple[str, str], mode: str, patience: int = 3, atol: float = 0.0, rtol: float = 0.0
    ) -> None:
        super().__init__(metric, mode, patience, atol, rtol)

    def run(self, train_state: TrainState, metrics_by_task: MetricsByTask) -> bool:
        value = self._value(metrics_by_task)
        if value is None or not self._is_stale(value):
            return False
        logger.info(
            "%s of %s has not been better than %.6g for %d measurements: training ends.",
            self.metric,
            self.task,
            self._best,
            self._without_improvement,
        )
        return True

    def resume(self, past: Sequence[MetricsByTask]) -> None:
        for value in self._values(past):
            self._is_stale(value)


class DropOnPlateauAction(_BestAction):
    """Multiplies the learning rate by `factor` when a metric has not improved on its best for `patience` measurements.

    A resumed run reads the earlier values, and so the rate, from its `metrics.jsonl`. Each drop compiles the training
    step again.

    Args:
      metric: (task, name of the metric).
      mode: "min" if smaller is better, "max" if larger is.
      factor: below 1.
      patience: measurements in a row without an improvement.
      atol, rtol: absolute change, and share of the best, that do not count as an improvement.
      min_scale: the product of all factors is never below it.

    Raises:
      ValueError: for another mode, a factor or `min_scale` that is not between 0 and 1, a patience below 1, a negative
        tolerance.
    """

    def __init__(
        self,
        metric: tuple[str, str],
        mode: str,
        factor: float = 0.5,
        patience: int = 2,
        atol: float = 0.0,
        rtol: float = 0.0,
        min_scale: float = 0.01,
    ) -> None:
        super().__init__(metric, mode, patience, atol, rtol)
        if not (0 < factor < 1 and 0 < min_scale < 1):
            raise ValueError(
                f"DropOnPlateauAction.factor and min_scale are {factor} and {min_scale}; they lie between 0 and 1."
            )
        self._factor, self._min_scale = factor, min_scale

    def run(self, train_state: TrainState, metrics_by_task: MetricsByTask) -> bool:
        value = self._value(metrics_by_task)
        if value is not None and self._drops(value):
            logger.info(
                "%s of %s is %.6g and its best %.6g: the learning rate is now %.3g of the schedule's.",
                self.metric,
                self.task,
                value,
                self._best,
                self.rate_scale,
            )
        return False

    def _drops(self, value: float) -> bool:
        """Whether the rate drops after this measurement."""
        if not self._is_stale(value) or self.rate_scale <= self._min_scale:
            return False
        self._without_improvement = 0
        self.rate_scale = max(self._min_scale, self.rate_scale * self._factor)
        return True

    def resume(self, past: Sequence[MetricsByTask]) -> None:
        for value in self._values(past):
            self._drops(value)


class TerminateOnNanAction(_MonitoringAction):
    """Ends training when a metric is NaN or infinite. A training loss that is not finite ends a run anyway."""

    def __init__(self, task: str, metric: str = "loss"):
        super().__init__(task, metric)

    def run(self, train_state: TrainState, metrics_by_task: MetricsByTask) -> bool:
        value = self._value(metrics_by_task)
        if value is None or math.isfinite(value):
            return False
        logger.info("%s of %s is %s.", self.metric, self.task, value)
        return True


class Actions:
    """The actions of a run, by mode.

    Args:
      by_mode: what `train.actions` is bound to.
      tasks: of each mode, the tasks it measures; a mode that this run does not have is missing.

    Raises:
      ValueError: for a key that is not a mode, a mode that is never measured, or an action that watches a task
        which its mode does not measure.
    """

    def __init__(self, by_mode: Mapping[str, Sequence[BaseAction]] | None, tasks: Mapping[ActionMode, Collection[str]]):
        self._by_mode: dict[ActionMode, Sequence[BaseAction]] = {}
        for name, actions in (by_mode or {}).items():
            if name not in ActionMode.__members__:
                raise ValueError(f"train.actions has the key {name!r}; use {', '.join(ActionMode.__members__)}.")
            mode = ActionMode[name]
            if not isinstance(actions, list | tuple) or not all(isinstance(action, BaseAction) for action in actions):
                raise ValueError(
                    f"train.actions has {actions!r} for {name!r}; give a list of actions, each with its brackets: "
                    "[@actions.EarlyStoppingAction()]."
                )
            if actions and mode not in tasks:
                raise ValueError(
                    f"train.actions has {name!r}, and this run makes no such evaluation: bind "
                    f"train.{'infer' if mode is ActionMode.INFER_EVAL else 'train'}_eval_dataset_cfg."
                )
            for action in actions:
                if isinstance(action, _MonitoringAction) and action.task not in tasks[mode]:
                    what = f"{type(action).__name__} watches the task {action.task!r}"
                    raise ValueError(f"{what}, and {name} measures {sorted(tasks[mode])}.")
            self._by_mode[mode] = actions

    def __contains__(self, mode: ActionMode) -> bool:
        return bool(self._by_mode.get(mode))

    @property
    def scale_rate(self) -> bool:
        """Whether one of them may scale the learning rate."""
        return any(isinstance(x, DropOnPlateauAction) for actions in self._by_mode.values() for x in actions)

    @property
    def rate_scale(self) -> float:
        """What the actions multiply the learning rate by, as host 0 knows it."""
        return distributed.from_first(
            "scale of the learning rate",
            lambda: math.prod(action.rate_scale for actions in self._by_mode.values() for action in actions),
        )

    def run(self, mode: ActionMode, train_state: TrainState, metrics_by_task: MetricsByTask) -> bool:
        """Runs a mode's actions on host 0; whether one of them ends training, on every host."""
        if mode not in self:
            return False
        stop = False
        if jax.process_index() == 0:
            values = {
                task: {name: Scalar(x) if isinstance(x, (float, int)) else x for name, x in metrics.items()}
                for task, metrics in metrics_by_task.items()
            }
            for action in self._by_mode[mode]:
                stop |= bool(action.run(train_state, metrics_by_task=values))
        if jax.process_count() > 1:
            stop = bool(multihost_utils.broadcast_one_to_all(np.asarray(stop)))
        return stop

    def resume(self, directory: Path, last_step: int) -> None:
        """Gives the actions the metrics that a run wrote to `metrics.jsonl` before it was resumed at `last_step`."""
        for mode, actions in self._by_mode.items():
            past: dict[int, dict[str, dict[str, float]]] = collections.defaultdict(dict)
            for line in writers.read_metrics(directory, _FOLDERS[mode]):
                task = line["dataset"].removeprefix(_FOLDERS[mode]) or TRAIN_METRIC_KEY
                past[line["step"]][task] = {name.removeprefix("eval/"): x for name, x in line.items()}
            for action in actions:
                action.resume([metrics for step, metrics in sorted(past.items()) if step <= last_step])


_FOLDERS = {
    ActionMode.TRAIN: "train",
    ActionMode.TRAIN_EVAL: "training_eval/",
    ActionMode.INFER_EVAL: "inference_eval/",
}
