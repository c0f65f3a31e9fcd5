"""What a dry run checks of a task: what the start of a run checks, without the network."""

from collections.abc import Callable
from typing import Any

from limba.data import contract
from tasks.pipeline import converters, predictions, streams
from tasks.registry.providers import find_provider, with_split
from tasks.registry.tasks import Task, get_subtasks
from tasks.sources.sharded import ShardedSource
from tasks.supervised import row_preprocessor


def check_batches(config: contract.DatasetConfig, feature_converter: Any) -> None:
    """The checks of a split that is read in batches: the task, its split, lengths, and the first rows of its files.

    Of tasks that need the network, or a vocabulary that is not on this machine, the rest is left to the run.

    Raises:
      ValueError, FileNotFoundError: as `task_batches.get_train_batches`.
    """
    provider = find_provider(config.mixture_or_task_name, config.module)
    tasks = get_subtasks(provider)
    if all(_is_here(task) for task in tasks):
        with_split(provider, config.split)
        if converters.is_known(feature_converter) and all(_reads_here(task) for task in tasks):
            streams.Stream.open(config, provider, feature_converter, None)
            return
    _check_rows(config, [task for task in tasks if config.split in task.splits], row_preprocessor.check_task)


def check_measured(config: contract.DatasetConfig) -> None:
    """The checks of a split that is predicted and measured: packages of metrics, and the first rows.

    Raises:
      ValueError, FileNotFoundError: as the evaluator, for tasks that have the split and metrics.
    """
    predictions.check_metrics(config)
    tasks = predictions.subtasks(config)
    measured = [task for task in tasks if config.split in task.splits and task.metric_fns]
    _check_rows(config, measured, row_preprocessor.check_generated)


def _check_rows(config: contract.DatasetConfig, tasks: list[Any], check: Callable[..., None]) -> None:
    for task in filter(_is_here, tasks):
        task.source.check(config.split)
        if _reads_here(task):
            check(task, config.split, config.task_feature_lengths)


def _is_here(task: Any) -> bool:
    return isinstance(task, Task) and isinstance(task.source, ShardedSource) and not task.source.needs_network


def _reads_here(task: Any) -> bool:
    return _is_here(task) and not any(contract.is_far(x.vocabulary) for x in task.output_features.values())
