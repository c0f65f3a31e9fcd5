"""Opens what `train()` reads: the training stream, the evaluation batches, the examples to predict."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from limba import data, evaluation
from limba.data import BatchIterator, DatasetConfig, EvalBatches, GetDatasetFn, GetEvalDatasetFn
from limba.models import BaseTransformerModel
from limba.partitioning import PjitPartitioner

logger = logging.getLogger(__name__)


def open_stream(
    model: BaseTransformerModel,
    config: DatasetConfig,
    get_dataset_fn: GetDatasetFn | None,
    prepare: Callable[[Any], Any],
    partitioner: PjitPartitioner,
) -> BatchIterator:
    """The training stream at its beginning; a `tf.data.Dataset` of a user's function is made resumable.

    Args:
      model: its feature converter.
      config: what to read.
      get_dataset_fn: None is `data.get_dataset`.
      prepare: what is done to the function's result.
      partitioner: knows which rows this host reads.
    """
    layout = partitioner.get_data_layout(config.batch_size)
    shard = (layout.shard_id, layout.num_shards)
    batches = prepare((get_dataset_fn or data.get_dataset)(config, *shard, model.FEATURE_CONVERTER_CLS))
    if hasattr(batches, "save_state"):
        return batches
    from tasks import foreign_readers

    return foreign_readers.DatasetBatches(batches, config, *shard)


def open_eval_batches(
    model: BaseTransformerModel,
    config: DatasetConfig | None,
    get_dataset_fn: GetEvalDatasetFn | None,
    eval_steps: int | None,
    partitioner: PjitPartitioner,
) -> EvalBatches:
    """The batches of teacher-forced evaluation by task; none without a configuration."""
    if config is None:
        return {}
    get_eval_fn = get_dataset_fn or data.get_training_eval_datasets
    layout = partitioner.get_data_layout(config.batch_size)
    opened = get_eval_fn(config, layout.shard_id, layout.num_shards, eval_steps, model.FEATURE_CONVERTER_CLS)
    return {task: data.NumpyBatches(x) if hasattr(x, "as_numpy_iterator") else x for task, x in opened.items()}


def open_evaluator(
    model: BaseTransformerModel,
    config: DatasetConfig | None,
    evaluator_cls: Callable[..., Any] | None,
    partitioner: PjitPartitioner,
    directory: Path,
) -> evaluation.InferenceEvaluator | None:
    """The evaluator of predictions; None, with a warning, where no task has metrics of its own."""
    if config is None:
        return None
    evaluator = evaluation.InferenceEvaluator(
        config, evaluator_cls, model, partitioner, directory, verify_matching_vocabs_fn=None
    )
    if not evaluator.eval_tasks:
        logger.warning(
            "No inference evaluation: no task of %s has metric_fns and a split %r.", config.name, config.split
        )
        return None
    return evaluator
