"""Evaluation in training: teacher-forced (`training_eval/<task>`) and by prediction (`inference_eval/<task>`)."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from limba import evaluation, train_statistics, writers
from limba.actions import ActionMode
from limba.data import Batch, EvalBatches
from limba.train_state import TrainState
from limba.trainer import BaseTrainer

PyTree = Any
Averages = Mapping[str, Sequence[str]]
Results = dict[str, dict[str, float]]


class InferenceEvaluator(Protocol):
    """What training needs of `evaluation.InferenceEvaluator`."""

    @property
    def eval_tasks(self) -> Sequence[Any]: ...

    def evaluate(self, params: PyTree, step: int) -> Results: ...

    def close(self) -> None: ...


@dataclasses.dataclass
class TrainingEvaluation:
    """All evaluations of a run.

    Attributes:
      trainer: its `eval_step`.
      batches: per task, batches that end.
      max_batches: of each task; None takes all.
      inference_evaluator: predicts and computes the tasks' own metrics, or None.
      training_eval_averages: `{"task_average/accuracy": ["task_a", "task_b"]}` adds the task `task_average`, whose
        accuracy is the mean of theirs.
      infer_eval_averages: likewise, of the tasks' own metrics.
      metric_writers: where training_eval goes.
    """

    trainer: BaseTrainer
    batches: EvalBatches
    max_batches: int | None
    inference_evaluator: InferenceEvaluator | None
    training_eval_averages: Averages
    infer_eval_averages: Averages
    metric_writers: Sequence[writers.MetricWriter]

    def __post_init__(self):
        self._is_first = True
        for mode, averages in (
            (ActionMode.TRAIN_EVAL, self.training_eval_averages),
            (ActionMode.INFER_EVAL, self.infer_eval_averages),
        ):
            for name, tasks in averages.items():
                unknown = sorted(set(tasks) - set(self._tasks(mode)))
                if unknown or not tasks or "/" not in name:
                    raise ValueError(
                        f"train's average {name!r} of {list(tasks)}: write {{'task_average/accuracy': ['a', 'b']}}; "
                        f"the tasks are {sorted(self._tasks(mode))}."
                    )

    def _tasks(self, mode: ActionMode) -> list[str]:
        if mode is ActionMode.TRAIN_EVAL:
            return list(self.batches)
        tasks = self.inference_evaluator.eval_tasks if self.inference_evaluator is not None else ()
        return [getattr(task, "name", task) for task in tasks]

    @property
    def measured_tasks(self) -> dict[ActionMode, list[str]]:
        """Of each mode that this run measures, the names that actions find metrics under."""
        modes = {
            ActionMode.TRAIN_EVAL: self.training_eval_averages,
            ActionMode.INFER_EVAL: self.infer_eval_averages,
        }
        names = {
            mode: [*self._tasks(mode), *(name.partition("/")[0] for name in averages)]
            for mode, averages in modes.items()
        }
        return {mode: tasks for mode, tasks in names.items() if tasks}

    @property
    def last_folder(self) -> str | None:
        """Where the last of the evaluations of a step is written; None if there is none."""
        if self._tasks(ActionMode.INFER_EVAL):
            return "inference_eval/"
        return "training_eval/" if self.batches else None

    def run(self, state: TrainState, step: int, say: Callable[[str], None]) -> dict[ActionMode, Results]:
        """Evaluates a state on everything, writes the metrics and says the most important.

        Args:
          state: the state of `step`.
          step: of the state.
          say: shows a line to people.
        """
        results: dict[ActionMode, Results] = {}
        if self.batches:
            results[ActionMode.TRAIN_EVAL] = self._evaluate_batches(state, step, say)
        if self.inference_evaluator is not None:
            results[ActionMode.INFER_EVAL] = self._evaluate_predictions(state, step, say)
        self._is_first = False
        return results

    def _evaluate_batches(self, state: TrainState, step: int, say: Callable[[str], None]) -> Results:
        results: Results = {}
        for task, batches in self.batches.items():
            counted = _CountedBatches(batches, self.trainer.partitioner.num_host_groups)
            scalars = evaluation.evaluate(self.trainer.eval_step, state, counted, self.max_batches)
            scalars |= counted.rates()
            if self._is_first:
                scalars["timing/compilation_seconds"] = counted.first_seconds
            results[task] = scalars
        _add_averages(results, self.training_eval_averages)
        for task, scalars in results.items():
            for writer in self.metric_writers:
                writer.write_scalars(step, f"training_eval/{task}", scalars)
            shown = [
                f"{words} {scalars[name]:{form}}"
                for name, words, form in (
                    ("nats_per_target_token", "nats/token", ".4f"),
                    ("accuracy", "accuracy", ".2%"),
                )
                if name in scalars
            ]
            say(f"step {step}: {task} (training_eval): {', '.join(shown)}")
        return results

    def _evaluate_predictions(self, state: TrainState, step: int, say: Callable[[str], None]) -> Results:
        assert self.inference_evaluator is not None
        began = time.monotonic()
        predicted = self.inference_evaluator.evaluate(state.params, step)
        seconds = time.monotonic() - began
        # SeqIO's metrics may be objects; texts and histograms are the loggers' business.
        values = {task: {n: getattr(x, "value", x) for n, x in metrics.items()} for task, metrics in predicted.items()}
        results = {
            task: {name: float(x) for name, x in metrics.items() if _is_number(x)} for task, metrics in values.items()
        }
        averaged = _add_averages(results, self.infer_eval_averages) if results else set()  # others than host 0: nothing
        writers.write_timing(self.metric_writers, step, "evaluate_seconds", seconds)
        for writer in self.metric_writers:
            for task, metrics in results.items():
                scalars = {f"eval/{name}": x for name, x in metrics.items()}
                # The evaluator's own loggers write the tasks; JSON lines and averages are ours.
                if task in averaged or isinstance(writer, writers.JsonLinesWriter):
                    writer.write_scalars(step, f"inference_eval/{task}", scalars)
        for task, metrics in results.items():
            shown = [f"{name} {x:.4g}" for name, x in metrics.items()]
            say(f"step {step}: {task} (inference_eval): {', '.join(shown)}")
        return results


def _is_number(x: Any) -> bool:
    return isinstance(x, (float, int, np.number, np.ndarray, jax.Array)) and np.size(x) == 1


def _add_averages(results: Results, averages: Averages) -> set[str]:
    """Adds the means over tasks; the names of the tasks they make up."""
    for name, tasks in averages.items():
        average, _, metric = name.partition("/")
        missing = [task for task in tasks if metric not in results[task]]
        if missing:
            raise ValueError(
                f"train's average {name!r}: {missing[0]} has {sorted(results[missing[0]])}, no {metric!r}."
            )
        results.setdefault(average, {})[metric] = float(np.mean([results[task][metric] for task in tasks]))
    return {name.partition("/")[0] for name in averages}


class _CountedBatches:
    """Batches that are counted and timed while they are used.

    Attributes:
      first_seconds: that the first batch took: compilation, where it was the first of its shape.
    """

    def __init__(self, batches: Iterable[Batch], num_host_groups: int):
        self._batches = batches
        self._num_host_groups = num_host_groups
        self.first_seconds = 0.0

    def __iter__(self) -> Iterator[Batch]:
        self._began = time.monotonic()
        self._steps, self._rows, self._target_tokens = 0, 0, 0
        for batch in self._batches:
            targets = batch["decoder_target_tokens"]
            self._steps += 1
            self._rows += targets.shape[0] * self._num_host_groups
            self._target_tokens += targets.size * self._num_host_groups
            given = time.monotonic()
            try:
                yield batch
            finally:  # Of a single batch, `islice` closes this without coming back.
                if self._steps == 1:
                    self.first_seconds = time.monotonic() - given

    def rates(self) -> dict[str, float]:
        return train_statistics.rates(time.monotonic() - self._began, self._steps, self._rows, self._target_tokens)
