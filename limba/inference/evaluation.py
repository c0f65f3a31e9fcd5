"""Evaluation: by teacher forcing over batches that end, and by a SeqIO task's own metrics over predictions."""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from limba import data, inference, writers
from limba import metrics as metrics_lib
from limba.data import Batch, DatasetConfig
from limba.models import BaseTransformerModel
from limba.partitioning import PjitPartitioner

PyTree = Any
logger = logging.getLogger(__name__)

EvalStep = Callable[[PyTree, Batch], metrics_lib.Metrics]


# ------------------------------------------------- teacher forcing --------------------------------------------------


def make_eval_step(model: BaseTransformerModel, partitioner: PjitPartitioner, param_shardings: PyTree) -> EvalStep:
    """A jitted `(params, this host's rows of a batch) -> metrics`."""
    step = partitioner.jit(
        lambda params, batch: model.eval_fn(params, batch)[1],
        in_shardings=(param_shardings, partitioner.data_sharding),
        out_shardings=partitioner.replicated,
    )
    return lambda params, batch: step(params, partitioner.shard_batch(batch))


def evaluate(
    eval_step: EvalStep, params: PyTree, batches: Iterable[Batch], max_batches: int | None
) -> dict[str, float]:
    """The model's metrics over the batches, and some about them.

    `unigram_nats_per_target_token` is what the best constant predictor reaches on the same targets: the entropy of
    their empirical distribution. A model whose `nats_per_target_token` is above it has learned nothing from context.

    Args:
      eval_step: from `make_eval_step`.
      params: parameters.
      batches: this host's rows.
      max_batches: stop after so many; None takes all.

    Raises:
      ValueError: if there is not a single batch.
    """
    total: metrics_lib.Metrics | None = None
    began = time.monotonic()
    token_counts = np.zeros(0, np.int64)
    for batch in itertools.islice(batches, max_batches):
        metrics = jax.device_get(eval_step(params, batch))
        token_counts = _add_counts(token_counts, batch)
        total = metrics if total is None else metrics_lib.add(total, metrics)
    if total is None:
        raise ValueError("The evaluation split is empty: choose another split, or leave the evaluation out.")
    scalars = metrics_lib.compute(total)
    if "nats_per_target_token" in total:  # A model of a user's own may have other metrics.
        scalars["num_target_tokens"] = float(total["nats_per_target_token"].count)
    scalars["unigram_nats_per_target_token"] = _entropy(_sum_over_hosts(token_counts))
    scalars["timing/evaluate_seconds"] = time.monotonic() - began
    return scalars


def _add_counts(counts: np.ndarray, batch: Batch) -> np.ndarray:
    """How often each token was a target so far: `[vocab]`."""
    targets = np.asarray(batch["decoder_target_tokens"])[np.asarray(batch["decoder_loss_weights"]) > 0]
    new = np.bincount(targets, minlength=len(counts))
    new[: len(counts)] += counts
    return new


def _sum_over_hosts(counts: np.ndarray) -> np.ndarray:
    """The counts of all hosts, `[vocab]`. Rows that several hosts read count as often: shares stay."""
    if jax.process_count() == 1:
        return counts
    length = int(np.max(multihost_utils.process_allgather(np.int32(len(counts)))))
    return multihost_utils.process_allgather(np.pad(counts, (0, length - len(counts)))).sum(axis=0)


def _entropy(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-np.sum(shares * np.log(shares)))


# ---------------------------------------------------- predictions ---------------------------------------------------


class InferenceEvaluator:
    """Runs `seqio.Evaluator`: the metric functions of tasks over a model's predictions and scores.

    Metrics and predictions go to the loggers that gin binds (`seqio.Evaluator.logger_cls`), in
    `<log_dir>/inference_eval`. Only process 0 computes and writes.

    Args:
      infer_eval_dataset_cfg: task or mixture, split, batch size, lengths (None: as long as the examples need).
      inference_evaluator_cls: `seqio.Evaluator`, usually with arguments bound by gin; None is `seqio.Evaluator` without
        loggers.
      model: with T5X's prediction methods.
      partitioner: mesh and rules.
      log_dir: None writes nothing.
      verify_matching_vocabs_fn: called with the configuration and the model; None checks nothing.

    Attributes:
      eval_tasks: the SeqIO tasks that have metrics and the split; may be empty.

    Raises:
      ValueError: if the vocabularies of task and model differ, or the batch does not divide by the mesh.
    """

    def __init__(
        self,
        infer_eval_dataset_cfg: DatasetConfig,
        inference_evaluator_cls: Callable[..., Any] | None,
        model: BaseTransformerModel,
        partitioner: PjitPartitioner,
        log_dir: str | Path | None = None,
        verify_matching_vocabs_fn: Callable[[DatasetConfig, Any], None] | None = data.verify_matching_vocabs,
    ):
        from tasks import inference as task_inference  # TensorFlow comes in here, and only here.

        config = infer_eval_dataset_cfg
        if verify_matching_vocabs_fn is not None:
            verify_matching_vocabs_fn(config, model)
        self._evaluator = task_inference.make_evaluator(
            config,
            inference_evaluator_cls,
            model.FEATURE_CONVERTER_CLS,
            None if log_dir is None else Path(log_dir) / "inference_eval",
            _TensorBoardLogger,
        )
        self.eval_tasks: Sequence[Any] = self._evaluator.eval_tasks
        self._batch_size = config.batch_size
        self._infer_fns = {
            mode: inference.make_infer_fn(getattr(model, method), config.batch_size, partitioner)
            for mode, method in inference.MODES.items()
            if hasattr(model, method)
        }

    def evaluate(self, params: PyTree, step: int) -> dict[str, dict[str, Any]]:
        """Predicts and scores what the tasks' metrics need, logs the metrics and returns them.

        Args:
          params: parameters on the mesh.
          step: that they are of.

        Returns:
          Metrics by task; empty on processes other than 0.
        """
        if not self.eval_tasks:
            return {}
        rng = jax.random.PRNGKey(0)

        def model_fn(mode: str) -> Callable[[Any], Any]:
            def run(examples: Any) -> Any:
                batches = _numpy_batches(examples, self._batch_size)
                outputs, aux = inference.split_aux(self._infer_fns[mode](params, batches, rng))
                # Lists, because some metrics compare them with targets that are lists.
                indexed = list(enumerate(jax.tree.map(lambda x: x.tolist(), outputs)))
                return (indexed, jax.tree.map(lambda x: x.tolist(), aux)) if aux else indexed

            return run

        metrics, _ = self._evaluator.evaluate(
            compute_metrics=jax.process_index() == 0,
            step=step,
            **{f"{mode}_fn": model_fn(mode) for mode in self._infer_fns},
        )
        return metrics.result() or {}

    def close(self) -> None:
        """Returns when metrics and events are written."""
        self._evaluator.close()
        for logger_ in self._evaluator.loggers if self.eval_tasks else ():
            if isinstance(logger_, _TensorBoardLogger):
                logger_.close()


def _numpy_batches(examples: Any, batch_size: int) -> Iterator[tuple[np.ndarray, Batch]]:
    """An enumerated `tf.data.Dataset` of examples as batches."""
    return examples.batch(batch_size).as_numpy_iterator()


class _TensorBoardLogger:
    """Event files with the folders and tags of `seqio.TensorBoardLogger`, without TensorFlow."""

    def __init__(self, output_dir: str):
        self.output_dir = output_dir
        self._writer = writers.TensorBoardWriter(Path(output_dir), keep_until=None)

    def __call__(self, task_name: str, step: int | None, metrics: Mapping[str, Any], **others: Any) -> None:
        del others
        scalars = {}
        for name, metric in metrics.items():
            if hasattr(metric, "value"):  # seqio.metrics.Scalar
                scalars[f"eval/{name}"] = float(np.asarray(metric.value))
            elif hasattr(metric, "textdata"):
                self._writer.write_text(step or 0, task_name, f"eval/{name}", str(metric.textdata))
            else:
                logger.warning("%s/%s is a %s, which is not written to TensorBoard.", task_name, name, type(metric))
        self._writer.write_scalars(step or 0, task_name, scalars)

    def close(self) -> None:
        self._writer.close()
