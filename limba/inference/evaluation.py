"""Evaluation: by teacher forcing over batches that end, and by a task's own metrics over predictions."""

import contextlib
import inspect
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from limba.data.contract import Batch, DatasetConfig
from limba.files import written_files
from limba.files.local_paths import local_path
from limba.inference import batch_inference, task_metrics, tasks_door
from limba.inference.kept_batches import KeptBatch
from limba.inference.metric_loggers import TensorBoardLogger
from limba.models import BaseTransformerModel, text_metrics
from limba.models import metrics as metrics_lib
from limba.partitioning.meshes import PjitPartitioner

PyTree = Any
logger = logging.getLogger(__name__)

EvalStep = Callable[[PyTree, Batch], metrics_lib.Metrics]


def make_folder(output_dir: str) -> Path:
    """The folder of an evaluation's results; it is made.

    Raises:
      ValueError: if it is a bucket, or a file.
    """
    if "://" in output_dir:
        raise ValueError(
            f"EVAL_OUTPUT_DIR {output_dir} is not a path of this machine, where an evaluation writes its results; give "
            "--output_dir=FOLDER."
        )
    directory = local_path(output_dir)
    if directory.is_file():
        raise ValueError(f"EVAL_OUTPUT_DIR (--output_dir) {directory} is a file; name a folder.")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


# ------------------------------------------------- teacher forcing --------------------------------------------------


def make_eval_step(model: BaseTransformerModel, partitioner: PjitPartitioner, param_shardings: PyTree) -> EvalStep:
    """A jitted `(params, sharded batch) -> metrics`."""
    return partitioner.jit(
        lambda params, batch: model.eval_fn(params, batch)[1],
        in_shardings=(param_shardings, partitioner.data_sharding),
        out_shardings=partitioner.replicated,
    )


def evaluate(
    eval_step: EvalStep,
    params: PyTree,
    batches: Iterable[KeptBatch],
    max_batches: int | None,
    error_of: Callable[[int, Batch], Exception],
    characters: np.ndarray | None = None,
) -> dict[str, float]:
    """The model's metrics over the batches, and metrics of the batches themselves.

    `nats_per_character` divides the nats of text targets by the characters that they stand for, so that vocabularies
    compare.

    `unigram_nats_per_target_token` is the loss of the best constant predictor on the same targets: the entropy of
    their empirical distribution. A model whose `nats_per_target_token` is above it has learned nothing from context.

    Args:
      params: what the step takes: parameters, or a train state.
      max_batches: the most batches to evaluate; None takes all.
      error_of: the error for a batch, by its number from 0, whose loss is not finite: `outputs.loss_error`.
      characters: of each piece, see `tasks_door.piece_characters`; None leaves `nats_per_character` out.

    Raises:
      ValueError: if there is not a single batch.
      NotFiniteError: if the loss of a batch is not finite; or what else `error_of` makes.
    """
    total: metrics_lib.Metrics | None = None
    began = time.monotonic()
    token_counts = np.zeros(0, np.int64)

    def fetched(number: int, batch: KeptBatch, computing: metrics_lib.Metrics) -> metrics_lib.Metrics:
        computed = jax.device_get(computing)
        # T5X's loss is not a number where it is normalized by the targets of a batch that has none.
        losses = [computed[x] for x in ("nats_per_target_token", "mean_squared_error", "loss") if x in computed]
        if losses and not math.isfinite(losses[0].compute()):
            raise error_of(number, batch.placed)
        return computed if total is None else metrics_lib.add(total, computed)

    pending: tuple[int, KeptBatch, metrics_lib.Metrics] | None = None
    for number, batch in enumerate(itertools.islice(batches, max_batches)):
        computing = eval_step(params, batch.placed)
        token_counts = _add_counts(token_counts, batch.target_counts)
        if pending is not None:
            total = fetched(*pending)  # The devices have work while these are fetched.
        pending = number, batch, computing
    if pending is None:
        raise ValueError("The evaluation split is empty: choose another split, or leave the evaluation out.")
    total = fetched(*pending)
    scalars = metrics_lib.compute(total)
    if "nats_per_target_token" in total:  # A model of a user's own may count nothing, or have other metrics.
        scalars.setdefault("num_target_tokens", float(total["nats_per_target_token"].count))
    token_counts = _sum_over_hosts(token_counts)
    shares = token_counts[token_counts > 0] / max(token_counts.sum(), 1)
    scalars["unigram_nats_per_target_token"] = float(-np.sum(shares * np.log(shares)))
    if characters is not None and text_metrics.NATS in scalars:
        scalars[text_metrics.PER_CHARACTER] = _per_character(scalars, token_counts, characters)
    scalars["timing/evaluate_seconds"] = time.monotonic() - began
    return scalars


def shown(scalars: Mapping[str, float]) -> list[str]:
    """The results of `evaluate` that a line of text has, of those that a model has."""
    forms = (
        ("nats_per_target_token", "{:.4f} nats/token"),
        ("nats_per_text_token", "{:.4f} nats/text token"),
        ("mean_squared_error", "mean squared error {:.4f}"),
        ("accuracy", "accuracy {:.2%}"),
    )
    return [form.format(scalars[name]) for name, form in forms if name in scalars]


def _per_character(scalars: Mapping[str, float], token_counts: np.ndarray, characters: np.ndarray) -> float:
    """Pieces of text have characters, others none. Of tokens that several hosts have counted the mean stays."""
    length = min(len(token_counts), len(characters))
    total = float(token_counts[:length] @ characters[:length])
    tokens = scalars["num_target_tokens"] * total / max(token_counts.sum(), 1)
    return scalars[text_metrics.NATS] * scalars[text_metrics.NUM_TOKENS] / tokens if tokens else 0.0


def _add_counts(counts: np.ndarray, others: np.ndarray) -> np.ndarray:
    longest = max(len(counts), len(others))
    return np.pad(counts, (0, longest - len(counts))) + np.pad(others, (0, longest - len(others)))


def _sum_over_hosts(counts: np.ndarray) -> np.ndarray:
    """The counts of all hosts, `[vocab]`. Rows that several hosts read count as often: shares stay."""
    if jax.process_count() == 1:
        return counts
    length = int(np.max(multihost_utils.process_allgather(np.int32(len(counts)))))
    return multihost_utils.process_allgather(np.pad(counts, (0, length - len(counts)))).sum(axis=0)


# ---------------------------------------------------- predictions ---------------------------------------------------


class InferenceEvaluator:
    """The metric functions of tasks over a model's predictions and scores: T5X's class of this name.

    Metrics and predictions go to the loggers that gin binds (`task_metrics.Evaluator.logger_cls`), in
    `<log_dir>/inference_eval`. Only process 0 computes and writes.

    Args:
      infer_eval_dataset_cfg: task or mixture, split, batch size, lengths (None: as long as the examples need).
      inference_evaluator_cls: `task_metrics.Evaluator` or, for tasks of SeqIO's and wherever its loggers are wanted,
        `seqio.Evaluator`, usually with arguments bound by gin; None is one without loggers.
      model: with T5X's prediction methods.
      log_dir: None writes nothing.
      verify_matching_vocabs_fn: called with the configuration and the model; None checks nothing.

    Attributes:
      eval_tasks: the tasks that have metrics and the split; may be empty.

    Raises:
      ValueError: if the vocabularies of task and model differ, the batch does not divide by the mesh, or a link lies in
        the folder of the loggers.
    """

    def __init__(
        self,
        infer_eval_dataset_cfg: DatasetConfig,
        inference_evaluator_cls: Callable[..., Any] | None,
        model: BaseTransformerModel,
        partitioner: PjitPartitioner,
        log_dir: str | Path | None = None,
        verify_matching_vocabs_fn: Callable[[DatasetConfig, Any], None] | None = tasks_door.verify_matching_vocabs,
    ):
        config = infer_eval_dataset_cfg
        log_dir = None if log_dir is None else Path(log_dir) / "inference_eval"
        if log_dir is not None:
            for path in (log_dir, *log_dir.rglob("*")):  # SeqIO's loggers, and those of users, follow links.
                written_files.refuse_link(path)
        if verify_matching_vocabs_fn is not None:
            verify_matching_vocabs_fn(config, model)
        converter = model.FEATURE_CONVERTER_CLS
        with _kept_if_used(log_dir):
            self._evaluator = _open_evaluator(config, inference_evaluator_cls, converter, log_dir)
            self._log_dir = log_dir if log_dir is not None and log_dir.exists() else None
        self.eval_tasks: Sequence[Any] = self._evaluator.eval_tasks
        self._infer_fns = {
            mode: batch_inference.make_mode_fn(model, mode, config.batch_size, partitioner)
            for mode, method in batch_inference.MODES.items()
            if hasattr(model, method)
        }

    def evaluate(
        self, params: PyTree, step: int, check: Callable[[], None] = lambda: None
    ) -> dict[str, dict[str, Any]]:
        """Predicts and scores as the tasks' metrics need, logs the metrics and returns them.

        By task; empty on processes other than 0.

        Args:
          check: called before each batch; it may raise.
        """
        if not self.eval_tasks:
            return {}
        if self._log_dir is not None:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        rng = jax.random.PRNGKey(0)

        def model_fn(mode: str) -> task_metrics.ModelFn:
            def run(batches: Any) -> Any:
                outputs, aux = batch_inference.split_aux(self._infer_fns[mode](params, _checked(batches, check), rng))
                # Lists, because some metrics compare them with targets that are lists.
                return jax.tree.map(lambda x: x.tolist(), outputs), aux

            return run

        model_fns = {mode: model_fn(mode) for mode in self._infer_fns}
        return self._evaluator.evaluate(model_fns, step, jax.process_index() == 0)

    @property
    def counts(self) -> Mapping[str, Mapping[str, float]]:
        """`task_metrics.Evaluator.counts`; SeqIO's evaluator has none."""
        return getattr(self._evaluator, "counts", {})

    def close(self) -> None:
        """Returns when metrics and events are written."""
        self._evaluator.close()


@contextlib.contextmanager
def _kept_if_used(folder: Path | None) -> Iterator[None]:
    """Removes the folders that the context makes for `folder` and leaves empty: a start that fails leaves nothing."""
    # Another process may be about to use the folder that process 0 has made.
    is_remover = folder is not None and jax.process_index() == 0
    new = [path for path in (folder, *folder.parents) if not path.exists()] if folder and is_remover else []
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for path in new:
                path.rmdir()


def _checked(batches: Iterable[Any], check: Callable[[], None]) -> Iterator[Any]:
    for batch in batches:
        check()
        yield batch


def _open_evaluator(
    config: DatasetConfig, evaluator_cls: Callable[..., Any] | None, converter: Any, log_dir: Path | None
) -> Any:
    """Our evaluator, unless a task, the feature converter or `evaluator_cls` is SeqIO's."""
    predictions = tasks_door.predictions()
    predictions.check_metrics(config)
    needs_seqio = config.use_cached or any(predictions.needs_seqio(x, converter) for x in predictions.subtasks(config))
    kind = None if evaluator_cls is None else inspect.unwrap(evaluator_cls)
    if kind is not None and not (isinstance(kind, type) and issubclass(kind, task_metrics.Evaluator)):
        return _SeqioEvaluator(config, evaluator_cls, converter, log_dir)
    ours = (evaluator_cls or task_metrics.Evaluator)(
        config=config, feature_converter=converter, log_dir=log_dir if kind is not None else None
    )
    if needs_seqio:
        endless = [
            x.name for x in predictions.subtasks(config) if x.metric_fns and predictions.may_be_endless(x, config)
        ]
        if endless and ours.num_examples is None:
            logger.warning(
                "The split %r of %s is not known to end, and all of it is read now. If it never ends, interrupt this "
                "and give --gin.task_metrics.Evaluator.num_examples=N.",
                config.split,
                ", ".join(endless),
            )
        settings = {"logger_cls": ours.logger_cls, "num_examples": ours.num_examples}
        return _SeqioEvaluator(config, None, converter, log_dir, settings)
    ours.open()
    return ours


class _SeqioEvaluator:
    """`seqio.Evaluator` with the methods of ours."""

    def __init__(
        self,
        config: DatasetConfig,
        evaluator_cls: Callable[..., Any] | None,
        converter: Any,
        log_dir: Path | None,
        settings: Mapping[str, Any] | None = None,
    ):
        self._batch_size = config.batch_size
        self._evaluator = tasks_door.seqio_evaluator(
            config, evaluator_cls, converter, log_dir, TensorBoardLogger, settings or {}
        )
        self.eval_tasks = self._evaluator.eval_tasks

    def evaluate(
        self, model_fns: Mapping[str, task_metrics.ModelFn], step: int, computes: bool
    ) -> dict[str, dict[str, Any]]:
        def of_seqio(run: task_metrics.ModelFn) -> Callable[[Any], Any]:
            def run_dataset(examples: Any) -> Any:  # an enumerated `tf.data.Dataset`
                outputs, aux = run(examples.batch(self._batch_size).as_numpy_iterator())
                aux = jax.tree.map(lambda x: x.tolist(), aux)
                indexed = list(enumerate(outputs))
                return (indexed, aux) if aux else indexed

            return run_dataset

        seqio_fns = {f"{mode}_fn": of_seqio(run) for mode, run in model_fns.items()}
        metrics, _ = self._evaluator.evaluate(compute_metrics=computes, step=step, **seqio_fns)
        return metrics.result() or {}

    def close(self) -> None:
        self._evaluator.close()
        for logger_ in self._evaluator.loggers if self.eval_tasks else ():
            if hasattr(logger_, "close"):
                logger_.close()
