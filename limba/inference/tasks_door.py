"""The door to `tasks` for the rooms of the engine, which do not import it themselves; it imports it inside functions.

Where arrays are given by other means no library of data is imported.
"""

import inspect
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from limba.addons import table
from limba.data import contract


def get_dataset(
    cfg: contract.DatasetConfig,
    shard_id: int,
    num_shards: int,
    feature_converter_cls: Any,
    num_epochs: int | None = None,
    continue_from_last_checkpoint: bool = False,
) -> contract.BatchIterator:
    """The training stream of a task or mixture: T5X's `utils.get_dataset`, but endless and resumable.

    Args:
      feature_converter_cls: a SeqIO feature converter, or its name.
      num_epochs, continue_from_last_checkpoint: accepted as T5X calls it for training: None and False.

    Raises:
      ValueError: for whatever is wrong with the task, and for a number of epochs.
    """
    if num_epochs is not None or continue_from_last_checkpoint:
        raise ValueError(
            "get_dataset makes the endless stream of training, whose position train() saves and restores; use "
            "seqio.get_dataset for a number of epochs."
        )
    from limba.tasks.pipeline import task_batches

    return task_batches.get_train_batches(cfg, feature_converter_cls, shard_id, num_shards)


def get_training_eval_datasets(
    cfg: contract.DatasetConfig,
    shard_id: int,
    num_shards: int,
    eval_steps: int | None,
    feature_converter_cls: Any,
    deterministic: bool = False,
) -> contract.EvalBatches:
    """The evaluation sets of each task, and of the mixture: T5X's `utils.get_training_eval_datasets`.

    Args:
      feature_converter_cls: a SeqIO feature converter, or its name.
      deterministic: must be False; the order is always that of the files.
    """
    del eval_steps  # Batches are made when they are asked for.
    if deterministic:
        raise ValueError("get_training_eval_datasets.deterministic needs data that T5X does not publish; leave it out.")
    from limba.tasks.pipeline import task_batches

    return task_batches.get_eval_batches(cfg, feature_converter_cls, shard_id, num_shards)


def facts(cfg: contract.DatasetConfig) -> dict[str, str]:
    """Facts that must be the same on all hosts, so that `get_dataset` gives them rows of the same batches.

    Each host resolves a branch of a data set on the hub by itself, and may see another commit, another corpus folder or
    another vocabulary file. After a position was restored it is the commit of that position.

    Args:
      cfg: with the seed that the run has, not None.

    Returns:
      "task", "split", "seed"; "source of NAME" and "vocabulary of NAME" of each task; and "data order", a checksum of
      everything that the order of examples depends on.

    Raises:
      ValueError, FileNotFoundError: if the task or its corpus is not there.
    """
    from limba.tasks.pipeline import task_batches

    return task_batches.data_facts(cfg)


def is_own(get_dataset_fn: Callable[..., Any] | None, ours: Callable[..., Any] = get_dataset) -> bool:
    """Whether a stream is `ours`, `get_dataset`'s or `get_training_eval_datasets`', and not a user's own function's."""
    return get_dataset_fn is None or inspect.unwrap(get_dataset_fn) is ours


def facts_of(get_dataset_fn: contract.GetDatasetFn | None, cfg: contract.DatasetConfig) -> dict[str, str]:
    """`facts` where `get_dataset` opens the stream; a user's own function has no facts."""
    return facts(cfg) if is_own(get_dataset_fn) else {}


def check_batches(cfg: contract.DatasetConfig, feature_converter_cls: Any) -> bool:
    """`tasks.pipeline.start_files.check_batches`: whether opening the batches takes neither network nor reading."""
    from limba.tasks.pipeline import start_files

    return start_files.check_batches(cfg, feature_converter_cls)


def check_measured(cfg: contract.DatasetConfig) -> list[str] | None:
    """`tasks.pipeline.start_files.check_measured`: the tasks that predictions are measured of; None if not known."""
    from limba.tasks.pipeline import start_files

    return start_files.check_measured(cfg)


def metric_names(cfg: contract.DatasetConfig) -> dict[str, list[str]]:
    """`tasks.pipeline.start_files.metric_names`: numbers that predictions give, by task, where known."""
    from limba.tasks.pipeline import start_files

    return start_files.metric_names(cfg)


def has_far_vocabulary(cfg: contract.DatasetConfig) -> bool:
    """Whether a vocabulary of a task is not on this machine."""
    return any(
        contract.is_far(feature.vocabulary)
        for task in predictions().subtasks(cfg)
        for feature in task.output_features.values()
    )


def has_blanks(
    get_dataset_fn: contract.GetDatasetFn | None, cfg: contract.DatasetConfig, batches: contract.BatchIterator
) -> bool:
    """`tasks.pipeline.predictions.has_blanks`: whether texts of a task may have sentinels; True of foreign data.

    Args:
      batches: that the function opened; those of a user's own need not come from a task.
    """
    return not (is_own(get_dataset_fn) and isinstance(batches, contract.TaskBatches)) or predictions().has_blanks(cfg)


def verify_matching_vocabs(cfg: contract.DatasetConfig, model: Any) -> None:
    """Checks that a task makes the ids that the model knows: T5X's `utils.verify_matching_vocabs`.

    Raises:
      ValueError: if a vocabulary of the task is not the model's.
    """
    from limba.tasks.registry import task_vocabularies

    task_vocabularies.check_task_vocabularies(cfg, model.input_vocabulary, model.output_vocabulary)


def get_vocabulary(cfg: contract.DatasetConfig) -> tuple[Any, Any]:
    """The vocabularies of a task's inputs and targets: T5X's `utils.get_vocabulary`."""
    from limba.tasks.registry import task_vocabularies

    return task_vocabularies.task_vocabularies(cfg)


def open_vocabulary(record: Mapping[str, Any]) -> Any:
    """The vocabulary that `run.json` describes."""
    from limba.tasks.pretraining import masked_text

    return masked_text.open_vocabulary(record)


def resumable(batches: Any, cfg: contract.DatasetConfig, shard_id: int, num_shards: int) -> contract.BatchIterator:
    """A user's `tf.data.Dataset` of this host's rows as a stream whose position can be saved."""
    return table.part("seqio", "A tf.data.Dataset").DatasetBatches(batches, cfg, shard_id, num_shards)


def num_tasks(cfg: contract.DatasetConfig) -> int:
    """How many tasks of a mixture have the split.

    Raises:
      ValueError: if there is no task or mixture of that name.
    """
    from limba.tasks.registry import providers

    provider = providers.find_provider(cfg.mixture_or_task_name, cfg.module)
    return len(providers.tasks_with_split(provider, cfg.split))


def evaluation_names(name: str, module: str | None) -> list[str]:
    """The names under which a task or mixture is evaluated: its own, and those of its tasks.

    Raises:
      ValueError: if there is no task or mixture of that name.
    """
    from limba.tasks.registry import providers, tasks

    provider = providers.find_provider(name, module)
    return list(dict.fromkeys([name, *(task.name for task in tasks.get_subtasks(provider))]))


def predictions() -> ModuleType:
    """`tasks.pipeline.predictions`: a task's examples, and files of predictions."""
    from limba.tasks.pipeline import predictions

    return predictions


def input_rows() -> ModuleType:
    """`tasks.pipeline.input_rows`: texts to answer from csv, JSON and Parquet."""
    from limba.tasks.pipeline import input_rows

    return input_rows


def describe_unknown(vocabulary: Any, texts: Sequence[str]) -> str:
    """`tasks.vocabularies.known_text.describe_inputs`: texts with characters that a vocabulary does not know."""
    from limba.tasks.vocabularies import known_text

    return known_text.describe_inputs(vocabulary, texts)


def sentences_with_blanks(name: str, module: str | None, split: str, count: int) -> list[tuple[str, str]]:
    """Sentences of a task's documents with one word left out, and these words: `tasks.pretraining.blank_sentences`."""
    from limba.tasks.pretraining import blank_sentences

    return blank_sentences.of_task(name, module, split, count)


def piece_characters(vocabulary: Any) -> np.ndarray | None:
    """How many characters each piece stands for: `tasks.vocabularies.piece_characters.of_vocabulary`."""
    from limba.tasks.vocabularies import piece_characters

    return piece_characters.of_vocabulary(vocabulary)


def seqio_evaluator(
    config: contract.DatasetConfig,
    evaluator_cls: Callable[..., Any] | None,
    feature_converter: Any,
    log_dir: pathlib.Path | None,
    tensorboard_logger: Callable[[str], Any],
    settings: Mapping[str, Any],
) -> Any:
    """SeqIO's evaluator of a task's metrics, by the add-on for SeqIO."""
    return table.part("seqio", "SeqIO's evaluator").make_evaluator(
        config, evaluator_cls, feature_converter, log_dir, tensorboard_logger, settings
    )


def set_folders(tfds_data_dir: str | None, cache_dirs: Sequence[str]) -> None:
    """Where TensorFlow Datasets and SeqIO's offline caches are looked for."""
    table.part("seqio", "A folder of TensorFlow Datasets or of SeqIO's caches").set_folders(tfds_data_dir, cache_dirs)
