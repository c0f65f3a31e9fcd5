"""SeqIO's own inference: the examples of its tasks in chunks, and its evaluator of metrics."""

import importlib.util
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import seqio
import tensorflow as tf

from limba.addons.seqio import registry_copies, tf_iterators
from limba.addons.seqio.seqio_streams import converter_class
from limba.data import contract
from limba.tasks.registry.providers import find_provider, tasks_with_split
from limba.tasks.supervised import row_preprocessor


def chunks(
    task: Any,
    config: contract.DatasetConfig,
    feature_converter: Any,
    shard_id: int,
    num_shards: int,
    size: int,
    skip: int,
) -> Iterator[tuple[tf.data.Dataset, contract.Batch]]:
    """`tasks.pipeline.predictions.chunks` of a task or feature converter of SeqIO's."""
    row_preprocessor.check_generated(task, config.split, config.task_feature_lengths)
    with tf_iterators.building:
        examples = registry_copies.seqio_provider(task).get_dataset(
            sequence_length=config.task_feature_lengths,
            split=config.split,
            shuffle=False,
            num_epochs=1,
            shard_info=seqio.ShardInfo(index=shard_id, num_shards=num_shards),
            use_cached=config.use_cached,
            seed=config.seed,
        )
    converter = converter_class(feature_converter)(pack=False)
    both = tf.data.Dataset.zip((examples, converter(examples, config.task_feature_lengths)))
    for of_task, of_model in both.padded_batch(size).skip(skip).prefetch(1).as_numpy_iterator():
        yield tf.data.Dataset.from_tensor_slices(of_task), of_model


def set_folders(tfds_data_dir: str | None, cache_dirs: Sequence[str]) -> None:
    """Where TensorFlow Datasets has its data, and where else SeqIO looks for cached tasks."""
    if tfds_data_dir:
        seqio.set_tfds_data_dir_override(tfds_data_dir)
    seqio.add_global_cache_dirs(list(cache_dirs))


def make_evaluator(
    config: contract.DatasetConfig,
    evaluator_cls: Callable[..., Any] | None,
    feature_converter: Any,
    log_dir: pathlib.Path | None,
    tensorboard_logger: Callable[[str], Any],
    settings: Mapping[str, Any],
) -> seqio.Evaluator:
    """SeqIO's evaluator of a task's metrics.

    Args:
      config: task or mixture, split, lengths (None: as long as the examples need).
      evaluator_cls: `seqio.Evaluator`, usually with arguments bound by gin; None is one without loggers.
      log_dir: where its loggers write; None leaves them out.
      tensorboard_logger: called with `log_dir` in the place of `seqio.TensorBoardLogger` where that cannot work:
        TensorFlow's summaries need the package tensorboard.
      settings: further arguments, where `evaluator_cls` is None.
    """
    provider = find_provider(config.mixture_or_task_name, config.module)
    arguments = dict(settings)
    if log_dir is None:
        arguments["logger_cls"] = ()
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)  # Evaluator does not make it.
        arguments["log_dir"] = str(log_dir)
    for task in tasks_with_split(provider, config.split):
        row_preprocessor.check_generated(task, config.split, config.task_feature_lengths)
    evaluator = (evaluator_cls or seqio.Evaluator)(
        mixture_or_task_name=provider.name,
        feature_converter=converter_class(feature_converter)(pack=False),
        eval_split=config.split,
        use_cached=config.use_cached,
        seed=config.seed,
        sequence_length=config.task_feature_lengths,
        use_memory_cache=config.use_memory_cache,
        **arguments,
    )
    for name, dataset in getattr(evaluator, "cached_task_datasets", {}).items():
        if next(iter(dataset), None) is None:
            raise ValueError(f"Split {config.split!r} of task {name!r} has no examples to evaluate.")
    if evaluator.eval_tasks and importlib.util.find_spec("tensorboard") is None:
        evaluator._loggers = tuple(
            tensorboard_logger(one.output_dir) if isinstance(one, seqio.TensorBoardLogger) else one
            for one in evaluator.loggers
        )
    return evaluator
