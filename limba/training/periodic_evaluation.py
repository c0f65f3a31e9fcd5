"""Evaluation in training: teacher-forced (`training_eval/<task>`) and by prediction (`inference_eval/<task>`).

Where the optimizer keeps an average of the parameters, each teacher-forced evaluation is made with it too, by the same
compiled step (`training_eval/<task>_average`).
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from limba.checkpoints.train_state import TrainState
from limba.inference import evaluation, tasks_door
from limba.inference.kept_batches import KeptBatch, KeptBatches
from limba.network.finite_numbers import outputs as finite_outputs
from limba.reports import average_lines, results_table, writers
from limba.training import statistics
from limba.training.actions import TRAIN_METRIC_KEY, ActionMode
from limba.training.baselines import RunBaselines
from limba.training.trainer import BaseTrainer

Averages = Mapping[str, Sequence[str]]
Results = dict[str, dict[str, float]]
MeasuredTasks = Mapping[ActionMode, Sequence[str]]
# Metrics in a line of text, and those of which a task with labels has three for each.
_MOST_SHOWN = 6
_OF_LABELS = ("_precision", "_recall", "_f1", "_number")
_OF_ENTITIES = "overall_f1"
_OF_ALL_LABELS = ("macro_f1", _OF_ENTITIES)


def measured_tasks(
    trainer: BaseTrainer,
    evaluated: Sequence[str],
    predicted: Sequence[str],
    training_eval_averages: Averages,
    infer_eval_averages: Averages,
) -> MeasuredTasks:
    """By mode, the tasks that have metrics for actions; a mode that this run never measures is missing.

    Args:
      evaluated: the tasks of teacher-forced evaluation.
      predicted: those of the evaluation by prediction.

    Raises:
      ValueError: for an average of tasks that are not measured, or whose name is taken.
    """
    found = {ActionMode.TRAIN: [TRAIN_METRIC_KEY]}
    for mode, known, averages in (
        (ActionMode.TRAIN_EVAL, evaluated, training_eval_averages),
        (ActionMode.INFER_EVAL, predicted, infer_eval_averages),
    ):
        for name, tasks in averages.items():
            if set(tasks) - set(known) or not tasks or "/" not in name:
                raise ValueError(
                    f"train's average {name!r} of {list(tasks)}: write {{'task_average/accuracy': ['a', 'b']}}; "
                    f"the tasks are {sorted(known)}."
                )
        if known:
            found[mode] = [*known, *(name.partition("/")[0] for name in averages)]
    if ActionMode.TRAIN_EVAL in found and _keeps_average(trainer):
        tasks = found[ActionMode.TRAIN_EVAL]
        of_average = [average_lines.name_of(task) for task in dict.fromkeys(tasks)]
        if both := sorted(set(tasks) & set(of_average)):
            raise ValueError(
                f"train.training_eval_average_metrics names {both[0]!r}, where the metrics of the average of the "
                "parameters go (averaging.AveragedOptimizer); give it another name."
            )
        found[ActionMode.TRAIN_EVAL] = [*tasks, *of_average]
    return found


@dataclasses.dataclass
class TrainingEvaluation:
    """All evaluations of a run.

    Attributes:
      batches: per task, batches that end.
      max_batches: of each task; None takes all.
      inference_evaluator: predicts and computes the tasks' own metrics; None leaves them out.
      training_eval_averages: `{"task_average/accuracy": ["task_a", "task_b"]}` adds the task `task_average`, whose
        accuracy is the mean of theirs.
      infer_eval_averages: likewise, of the tasks' own metrics.
      measured_tasks: `measured_tasks(…)` of these.
      metric_writers: where training_eval goes.
      baselines: of n-grams, which each evaluation repeats beside its own metrics; None has none.
    """

    trainer: BaseTrainer
    batches: Mapping[str, KeptBatches]
    max_batches: int | None
    inference_evaluator: evaluation.InferenceEvaluator | None
    training_eval_averages: Averages
    infer_eval_averages: Averages
    measured_tasks: MeasuredTasks
    metric_writers: Sequence[writers.MetricWriter]
    baselines: RunBaselines | None = None

    def __post_init__(self) -> None:
        self._is_first = True

    @property
    def last_folder(self) -> str | None:
        """Prefix of the metrics that the last evaluation of a step writes; None without an evaluation."""
        if ActionMode.INFER_EVAL in self.measured_tasks:
            return "inference_eval/"
        return "training_eval/" if self.batches else None

    def run(
        self, state: TrainState, step: int, say: Callable[[str], None], check: Callable[[], None]
    ) -> dict[ActionMode, Results]:
        """Evaluates the state of a step on all tasks, writes the metrics and says the most important to people.

        Args:
          check: called before each batch; it may raise.
        """
        results: dict[ActionMode, Results] = {}
        if self.batches:
            results[ActionMode.TRAIN_EVAL] = self._evaluate_batches(state, step, say, check)
        if self.inference_evaluator is not None:
            results[ActionMode.INFER_EVAL] = self._evaluate_predictions(
                self.inference_evaluator, state, step, say, check
            )
        self._is_first = False
        return results

    @functools.cached_property
    def _piece_characters(self) -> np.ndarray | None:
        return tasks_door.piece_characters(getattr(self.trainer.model, "output_vocabulary", None))

    def close(self) -> None:
        """Returns when the metrics of the tasks are written."""
        if self.inference_evaluator is not None:
            self.inference_evaluator.close()

    def _evaluate_batches(
        self, state: TrainState, step: int, say: Callable[[str], None], check: Callable[[], None]
    ) -> Results:
        results = self._measure_batches(state, step, say, check)
        shown = {task: task for task in results}
        if getattr(state, "keeps_average", False):
            for task, scalars in self._measure_batches(state.with_average(), step, say, check).items():
                scalars.pop("timing/compilation_seconds", None)  # the step is the same, and compiled by now
                results[name := average_lines.name_of(task)] = scalars
                shown[name] = f"{task}, average of the parameters"
        for task, scalars in results.items():
            for writer in self.metric_writers:
                writer.write_scalars(step, f"training_eval/{task}", scalars)
            say(f"step {step}: {shown[task]} (training_eval): {', '.join(evaluation.shown(scalars))}")
        return results

    def _measure_batches(
        self, state: TrainState, step: int, say: Callable[[str], None], check: Callable[[], None]
    ) -> Results:
        results: Results = {}
        for task, batches in self.batches.items():
            counted = _CountedBatches(batches, self.trainer.partitioner.num_host_groups, check)
            named = f"{task} (training_eval) at step {step}"
            error_of = functools.partial(
                finite_outputs.loss_error, self.trainer.model, self.trainer.partitioner, state.params, named
            )
            scalars = evaluation.evaluate(
                self.trainer.eval_step, state, counted, self.max_batches, error_of, self._piece_characters
            )
            scalars |= counted.rates()
            if self.baselines is not None:
                scalars |= self.baselines.of_task(task, step, say, check)
            if self._is_first:
                scalars["timing/compilation_seconds"] = counted.first_seconds
            results[task] = scalars
        _add_averages(results, self.training_eval_averages)
        return results

    def _evaluate_predictions(
        self,
        evaluator: evaluation.InferenceEvaluator,
        state: TrainState,
        step: int,
        say: Callable[[str], None],
        check: Callable[[], None],
    ) -> Results:
        began = time.monotonic()
        predicted = evaluator.evaluate(state.params, step, check)
        seconds = time.monotonic() - began
        # SeqIO's metrics may be objects; its loggers write texts and histograms.
        values = {task: {n: getattr(x, "value", x) for n, x in metrics.items()} for task, metrics in predicted.items()}
        results = {
            task: {name: float(x) for name, x in metrics.items() if _is_number(x)} for task, metrics in values.items()
        }
        averaged = _add_averages(results, self.infer_eval_averages) if results else set()  # empty on all hosts but 0
        writers.write_timing(self.metric_writers, step, "evaluate_seconds", seconds)
        for writer in self.metric_writers:
            is_tensorboard = isinstance(writer, writers.TensorBoardWriter)
            for task, metrics in results.items():
                scalars = {f"eval/{name}": x for name, x in metrics.items()}
                if not is_tensorboard:
                    writer.write_scalars(step, f"inference_eval/{task}", {**scalars, **evaluator.counts.get(task, {})})
                elif task in averaged:  # The evaluator's own loggers write the event files of the tasks.
                    writer.write_scalars(step, f"inference_eval/{task}", scalars)
        for task, metrics in results.items():
            say(f"step {step}: {task} (inference_eval): {', '.join(_shown(metrics))}")
        return {task: {**evaluator.counts.get(task, {}), **metrics} for task, metrics in results.items()}


def _keeps_average(trainer: BaseTrainer | None) -> bool:
    return trainer is not None and getattr(trainer.train_state, "keeps_average", False)


def _shown(metrics: Mapping[str, float]) -> list[str]:
    """The metrics that a line of text has: of many not those of single labels, nor the shares that F1 is made of.

    Those of whole entities begin with their F1.
    """
    names = list(metrics)
    if len(names) > _MOST_SHOWN:
        names = [x for x in names if not x.endswith(_OF_LABELS) or x in _OF_ALL_LABELS]
        names = sorted(names, key=lambda name: name != _OF_ENTITIES)[:_MOST_SHOWN]
    left_out = len(metrics) - len(names)
    shown = [f"{name} {results_table.shown(metrics[name])}" for name in names]
    return [*shown, f"{left_out} more in {writers.METRICS_FILE}"] if left_out else shown


def _is_number(x: Any) -> bool:
    return isinstance(x, (float, int, np.number, np.ndarray, jax.Array)) and np.size(x) == 1


def _add_averages(results: Results, averages: Averages) -> set[str]:
    """Adds the means over tasks, and returns the names of the tasks that they are added as."""
    for name, tasks in averages.items():
        average, _, metric = name.partition("/")
        missing = [task for task in tasks if metric not in results[task]]
        if missing:
            found = sorted(results[missing[0]])
            raise ValueError(f"train's average {name!r}: {missing[0]} has {found}, no {metric!r}.")
        results.setdefault(average, {})[metric] = float(np.mean([results[task][metric] for task in tasks]))
    return {name.partition("/")[0] for name in averages}


class _CountedBatches:
    """Batches that are counted and timed while they are used.

    Attributes:
      first_seconds: seconds to give the devices the first batch, which compiles if none had its shape before.
    """

    def __init__(self, batches: Iterable[KeptBatch], num_host_groups: int, check: Callable[[], None]):
        self._batches, self._num_host_groups, self.first_seconds = batches, num_host_groups, 0.0
        self._check = check

    def __iter__(self) -> Iterator[KeptBatch]:
        self._began = time.monotonic()
        self._steps, self._rows, self._target_tokens = 0, 0, 0
        self._check()
        for batch in self._batches:
            self._check()
            rows, length = batch.shape
            self._steps += 1
            self._rows += rows * self._num_host_groups
            self._target_tokens += rows * length * self._num_host_groups
            given = time.monotonic()
            try:
                yield batch
            finally:  # Of a single batch, `islice` closes this without coming back.
                if self._steps == 1:
                    self.first_seconds = time.monotonic() - given

    def rates(self) -> dict[str, float]:
        return statistics.rates(time.monotonic() - self._began, self._steps, self._rows, self._target_tokens)
