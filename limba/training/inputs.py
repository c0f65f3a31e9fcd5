"""Opens the inputs of `train()`: the training stream, the evaluation batches, the examples to predict."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

from limba.checkpoints.checkpointing import CheckpointConfig
from limba.data import contract
from limba.data.contract import Batch, BatchIterator, DatasetConfig, GetDatasetFn, GetEvalDatasetFn
from limba.inference import evaluation, kept_batches, tasks_door
from limba.inference.kept_batches import KeptBatches
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner
from limba.training.start_checks import Scope

logger = logging.getLogger(__name__)


def open_stream(
    scope: Scope,
    model: BaseTransformerModel,
    config: DatasetConfig,
    get_dataset_fn: GetDatasetFn | None,
    prepare_train_iter_fn: Callable[..., Any] | None,
    partitioner: PjitPartitioner,
    checkpoint_cfg: CheckpointConfig,
) -> BatchIterator | None:
    """The training stream at its beginning; a `tf.data.Dataset` of a user's function is made resumable.

    None where a start that only checks leaves it to the run.

    Raises:
      ValueError: for whatever is wrong with the data, and for stages of a function that does not make them.
    """
    if config.stages and not tasks_door.is_own(get_dataset_fn):
        raise ValueError(
            "DatasetConfig.stages are made by Limba's own get_dataset: train.get_dataset_fn is another function. Leave "
            "one of the two out."
        )
    if not scope.opens("train_dataset_cfg", config, get_dataset_fn, tasks_door.get_dataset, model):
        return None
    layout = partitioner.get_data_layout(config.batch_size)
    shard = (layout.shard_id, layout.num_shards)
    batches = (get_dataset_fn or tasks_door.get_dataset)(config, *shard, model.FEATURE_CONVERTER_CLS)
    if prepare_train_iter_fn is not None:
        batches = prepare_train_iter_fn(batches, partitioner=partitioner, checkpoint_cfg=checkpoint_cfg)
    return batches if hasattr(batches, "save_state") else tasks_door.resumable(batches, config, *shard)


def stage(batches: BatchIterator, config: DatasetConfig) -> DatasetConfig:
    """The configuration of the batch that was read last, or before that of the next: a stage's, or the only one."""
    found = getattr(batches, "config", None)  # a user's own stream may have another of that name
    return found if isinstance(found, DatasetConfig) else config


class FirstBatch:
    """Reads the first batch of a stream in a thread, while the model is initialized and compiled.

    From `begin` until the batch was taken, nobody else may use the stream. An error of reading is raised to whoever
    takes the batch. The thread does not keep the process from ending.
    """

    def __init__(self, batches: BatchIterator):
        self._batches = batches
        self._read: Future[Batch] = Future()
        self._thread = threading.Thread(target=self._read_it, name="first batch", daemon=True)

    def begin(self) -> None:
        """Starts to read from where the stream stands; does nothing the second time."""
        if self._thread.ident is None:
            self._thread.start()

    def _read_it(self) -> None:
        try:
            batch = next(self._batches)
        except BaseException as error:  # Whatever it is, who takes the batch gets it.
            self._fail(error)
        else:
            with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
                self._read.set_result(batch)

    def _fail(self, error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):
            self._read.set_exception(error)

    def stop_waiting(self) -> None:
        """Raises `ReadingStoppedError` to whoever waits for the batch."""
        self._fail(contract.ReadingStoppedError())

    @property
    def is_there(self) -> bool:
        """Whether taking the batch would not wait."""
        return self._read.done()

    @property
    def taken(self) -> Batch:
        """The batch, this host's rows of it, once it was taken."""
        return self._read.result()

    def __iter__(self) -> Iterator[Batch]:
        """The one batch."""
        self.begin()
        yield self._read.result()


def open_eval_batches(
    scope: Scope,
    model: BaseTransformerModel,
    config: DatasetConfig | None,
    get_dataset_fn: GetEvalDatasetFn | None,
    eval_steps: int | None,
    partitioner: PjitPartitioner,
) -> Mapping[str, KeptBatches]:
    """The batches of teacher-forced evaluation by task; none without a configuration, or where the run opens them."""
    ours = tasks_door.get_training_eval_datasets
    if config is None or not scope.opens("train_eval_dataset_cfg", config, get_dataset_fn, ours, model):
        return {}
    open_fn = get_dataset_fn or ours
    layout = partitioner.get_data_layout(config.batch_size)
    opened = open_fn(config, layout.shard_id, layout.num_shards, eval_steps, model.FEATURE_CONVERTER_CLS)
    batches = {task: contract.NumpyBatches(x) if hasattr(x, "as_numpy_iterator") else x for task, x in opened.items()}
    return kept_batches.keep(batches, partitioner)


def open_evaluator(
    scope: Scope,
    model: BaseTransformerModel,
    config: DatasetConfig | None,
    evaluator_cls: Callable[..., Any] | None,
    partitioner: PjitPartitioner,
    directory: Path,
) -> tuple[evaluation.InferenceEvaluator | None, list[str]]:
    """The evaluator of predictions and its tasks; None, with a warning, where no task has metrics of its own.

    A start that only checks knows the tasks, and opens no evaluator.
    """
    if config is None:
        return None, []
    if scope.checks_only:
        return None, scope.measured("infer_eval_dataset_cfg", config)
    evaluator = evaluation.InferenceEvaluator(
        config, evaluator_cls, model, partitioner, directory, verify_matching_vocabs_fn=None
    )
    if evaluator.eval_tasks:
        return evaluator, [getattr(task, "name", task) for task in evaluator.eval_tasks]
    logger.warning("No inference evaluation: no task of %s has metric_fns and a split %r.", config.name, config.split)
    return None, []
