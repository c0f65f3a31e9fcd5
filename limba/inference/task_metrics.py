"""The metrics of tasks over a model's predictions and scores: what `seqio.Evaluator` does, for our own tasks."""

import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.data.contract import Batch, DatasetConfig
from limba.inference import tasks_door
from limba.inference.metric_loggers import Scalar
from limba.network.finite_numbers.layers import NotFiniteError

logger = logging.getLogger(__name__)

# Runs the model over the batches of a task, each with the indices of its examples: results, and auxiliary values.
ModelFn = Callable[[Iterator[tuple[np.ndarray, Batch]]], tuple[Sequence[Any], Mapping[str, Any]]]


class Evaluator:
    """Predicts and scores the examples of tasks and computes their metrics: `seqio.Evaluator` for our own tasks.

    Args:
      config: task or mixture, split, batch size, lengths (None: as long as the longest example).
      feature_converter: of the model.
      log_dir: where loggers write; None leaves them out.
      logger_cls: classes of `limba.inference.metric_loggers`, or of your own.
      num_examples: of each task, from the beginning; None takes all.
      use_memory_cache: accepted; examples are kept.

    Attributes, once `open` was called:
      eval_tasks: the tasks that have the split and metrics; may be empty.
      loggers: of `logger_cls`.
      counts: by task, of the last evaluation: `num_examples`, `tokens_per_prediction` (EOS included, where it predicted
        tokens) and `timing/evaluate_seconds`.
    """

    def __init__(
        self,
        config: DatasetConfig,
        feature_converter: Any,
        log_dir: Path | None = None,
        logger_cls: Sequence[Callable[..., Any]] = (),
        num_examples: int | None = None,
        use_memory_cache: bool = True,
    ):
        del use_memory_cache
        self._config = config
        self._feature_converter = feature_converter
        self._log_dir = log_dir
        self.logger_cls = logger_cls
        self.num_examples = num_examples
        self.eval_tasks: list[Any] = []
        self.loggers: list[Any] = []
        self.counts: dict[str, dict[str, float]] = {}
        self._targets: dict[str, list[Any]] = {}

    def open(self) -> None:
        """Finds the tasks, reads their examples and opens the loggers.

        Raises:
          ValueError: for a logger of SeqIO's, which needs SeqIO's evaluator; if something is wrong with a task.
        """
        config, predictions = self._config, tasks_door.predictions()
        for task in predictions.subtasks(config):
            if config.split not in task.splits:
                logger.info("Task %s has no split %r, and is not evaluated.", task.name, config.split)
            elif not task.metric_fns:
                logger.info("Task %s has no metric_fns: its predictions are not measured.", task.name)
            else:
                self.eval_tasks.append(task)
        if self._log_dir is not None:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            self.loggers = [_open_logger(kind, str(self._log_dir)) for kind in self.logger_cls]
        self._examples = {
            task.name: list(itertools.islice(predictions.examples(task, config), self.num_examples))
            for task in self.eval_tasks
        }
        lengths = self._lengths()
        self._features = {
            name: predictions.model_features(found, lengths, self._feature_converter)
            for name, found in self._examples.items()
            if found
        }

    def _lengths(self) -> dict[str, int]:
        """Those that are given; the longest of all tasks of the others.

        Inputs of an encoder-decoder are padded no further than the longest. Targets keep a given length, as it limits
        what is decoded.
        """
        longest: dict[str, int] = {}
        for task in self.eval_tasks:
            for name in task.output_features:
                found = [len(example[name]) for example in self._examples[task.name]]
                longest[name] = max([longest.get(name, 0), *found])
        given = self._config.task_feature_lengths or {}
        lengths = {name: given.get(name, length) for name, length in longest.items()}
        if "inputs" in lengths and tasks_door.predictions().pads_inputs_alone(self._feature_converter):
            lengths["inputs"] = min(lengths["inputs"], longest["inputs"])
        return lengths

    def evaluate(self, model_fns: Mapping[str, ModelFn], step: int, computes: bool) -> dict[str, dict[str, Any]]:
        """Runs the model as the metrics of each task need, logs the metrics and returns them, by task.

        Args:
          model_fns: by "predict", "predict_with_aux" and "score".
          computes: whether this process computes and logs; else the result is empty.

        Raises:
          ValueError: if a metric fails; the message names the task.
        """
        results, self.counts = {}, {}
        for task in self.eval_tasks:
            began = time.monotonic()
            results[task.name] = self._results(task, model_fns)
            self.counts[task.name] = {
                "num_examples": len(self._examples[task.name]),
                **_lengths_of(results[task.name]),
                "timing/evaluate_seconds": time.monotonic() - began,
            }
        if not computes:
            return {}
        found = {}
        for task in self.eval_tasks:
            try:
                found[task.name] = self._compute(task, results[task.name], step)
            except Exception as error:  # A metric of a user's own may raise anything.
                raise ValueError(f"Failed to evaluate task {task.name}: {error}") from error
        return found

    def _results(self, task: Any, model_fns: Mapping[str, ModelFn]) -> dict[str, tuple[Any, Mapping[str, Any]]]:
        modes = {
            "predict": task.predict_metric_fns,
            "score": task.score_metric_fns,
            "predict_with_aux": task.predict_with_aux_metric_fns,
        }
        if not self._examples[task.name]:
            raise ValueError(f"Split {self._config.split!r} of task {task.name!r} has no examples to evaluate.")
        try:
            return {mode: model_fns[mode](self._batches(task)) for mode, functions in modes.items() if functions}
        except NotFiniteError as error:
            raise NotFiniteError(f"Task {task.name}, split {self._config.split!r}: {error}") from error

    def _batches(self, task: Any) -> Iterator[tuple[np.ndarray, Batch]]:
        features, size = self._features[task.name], self._config.batch_size
        count = len(self._examples[task.name])
        for start in range(0, count, size):
            yield (
                np.arange(start, min(start + size, count)),
                {name: x[start : start + size] for name, x in features.items()},
            )

    def _compute(self, task: Any, results: Mapping[str, Any], step: int) -> dict[str, Any]:
        examples = self._examples[task.name]
        if task.name not in self._targets:
            self._targets[task.name] = [tasks_door.predictions().target(task, example) for example in examples]
        targets = self._targets[task.name]
        inferences: dict[str, Any] = {}
        metrics: dict[str, Any] = {}
        for function in task.predict_metric_fns + task.score_metric_fns + task.predict_with_aux_metric_fns:
            arguments: dict[str, Any] = {"targets": targets}
            if function in task.score_metric_fns:
                scores, aux = results["score"]
                inferences["score"] = list(scores)
                arguments["scores"] = (np.array(scores), _arrays(aux)) if aux else np.array(scores)
            else:
                outputs, aux = results["predict" if function in task.predict_metric_fns else "predict_with_aux"]
                inferences["output"] = _decode(task.output_features["targets"].vocabulary, np.array(outputs))
                arguments["predictions"] = inferences["prediction"] = [
                    task.postprocess_fn(text, example=example, is_target=False)
                    for example, text in zip(examples, inferences["output"], strict=True)
                ]
                if function in task.predict_with_aux_metric_fns:
                    arguments["aux_values"] = inferences["aux_value"] = _arrays(aux)
            for name, value in function(**arguments).items():
                if name in metrics:
                    raise ValueError(f"Two metrics have the name {name!r}.")
                metrics[name] = value
                if isinstance(value, float | np.floating) and not np.isfinite(value):
                    logger.warning(
                        "%s of %s is %s for these predictions: it is undefined, and files have null for it.",
                        name,
                        task.name,
                        value,
                    )
        values = {
            name: x if hasattr(x, "value") or hasattr(x, "textdata") else _scalar(x) for name, x in metrics.items()
        }
        for log in self.loggers:
            log(
                task_name=task.name,
                step=step,
                metrics=values,
                dataset=tasks_door.predictions().Examples(examples),
                inferences=inferences,
                targets=targets,
            )
        return metrics

    def close(self) -> None:
        """Writes what loggers have kept."""
        for log in self.loggers:
            if hasattr(log, "close"):
                log.close()


def _open_logger(kind: Callable[..., Any], log_dir: str) -> Any:
    opened = kind(output_dir=log_dir)
    if type(opened).__module__.startswith("seqio."):
        name = type(opened).__name__
        raise ValueError(
            f"The logger seqio.{name} goes with seqio.Evaluator; bind metric_loggers.{name} "
            "(limba.inference.metric_loggers), or train.inference_evaluator_cls = @seqio.Evaluator."
        )
    return opened


def _scalar(value: Any) -> Any:
    # Loggers of a user's own that derive from SeqIO's look for SeqIO's class.
    seqio = sys.modules.get("seqio")
    return (seqio.metrics.Scalar if seqio is not None else Scalar)(value)


def _arrays(aux: Any) -> Any:
    return {name: _arrays(x) for name, x in aux.items()} if isinstance(aux, Mapping) else np.array(aux)


def _lengths_of(results: Mapping[str, tuple[Any, Mapping[str, Any]]]) -> dict[str, float]:
    """Tokens of a prediction, up to its padding, where there are predictions `[examples, length]`."""
    outputs = next((outputs for mode, (outputs, _) in results.items() if mode != "score"), None)
    if not outputs or np.ndim(outputs[0]) != 1:
        return {}
    return {"tokens_per_prediction": float(np.mean([np.count_nonzero(ids) for ids in outputs]))}


def _decode(vocabulary: Any, ids: np.ndarray) -> Any:
    """The texts of predictions `[examples, length]`, or `[examples, decodes, length]`; others as they are."""
    if ids.ndim == 2:
        return [vocabulary.decode(row) for row in ids.tolist()]
    return [_decode(vocabulary, of_example) for of_example in ids] if ids.ndim == 3 else list(ids)
