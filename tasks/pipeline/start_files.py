"""What a start checks of a task and its files where it does not open all of them: without the network."""

from collections.abc import Callable
from typing import Any

from limba.data import contract
from tasks.metrics import metric_packages
from tasks.pipeline import predictions, task_batches
from tasks.registry.providers import find_provider
from tasks.registry.tasks import get_subtasks
from tasks.sources.sharded import ShardedSource
from tasks.supervised import row_preprocessor

# SeqIO's, whose splits and files a library of data sets looks up.
_FAR_SOURCE = "TfdsDataSource"


def check_batches(config: contract.DatasetConfig, feature_converter: Any) -> bool:
    """Checks a split that is read in batches: the task, its split, lengths, and the first rows of its files.

    Of tasks that need the network, or a vocabulary that is not on this machine, the rest is left to the run.

    Returns:
      Whether the batches are left to who opens them: that takes neither network nor reading, and checks the same.

    Raises:
      ValueError, FileNotFoundError: as `task_batches.get_train_batches`.
    """
    provider = find_provider(config.mixture_or_task_name, config.module)
    tasks = get_subtasks(provider)
    if any(map(_is_far, tasks)):
        _check_rows(config, tasks, row_preprocessor.check_task)
        return False
    if task_batches.kind_of_stream(config, provider, feature_converter).is_counted:
        return True
    task_batches.open_stream(config, feature_converter)  # TensorFlow reads to learn whether it can save the position.
    return False


def check_measured(config: contract.DatasetConfig) -> list[str] | None:
    """Checks a split that is predicted and measured: packages of metrics, and the first rows.

    Returns:
      The names of the tasks that have the split and metrics; None where only the network knows their splits.

    Raises:
      ValueError, FileNotFoundError: as the evaluator.
    """
    tasks = predictions.subtasks(config)
    if any(map(_has_far_source, tasks)):
        for task in tasks:
            metric_packages.check(task.name, task.metric_fns)
        return None
    predictions.check_metrics(config)
    measured = [task for task in tasks if config.split in task.splits and task.metric_fns]
    _check_rows(config, measured, row_preprocessor.check_generated)
    return [task.name for task in measured]


def _check_rows(config: contract.DatasetConfig, tasks: list[Any], check: Callable[..., None]) -> None:
    for task in tasks:
        if _has_far_source(task) or not isinstance(task.source, ShardedSource) or config.split not in task.splits:
            continue
        task.source.check(config.split)
        if not _is_far(task):
            check(task, config.split, config.task_feature_lengths)


def _is_far(task: Any) -> bool:
    return _has_far_source(task) or any(contract.is_far(x.vocabulary) for x in task.output_features.values())


def _has_far_source(task: Any) -> bool:
    names = {kind.__name__ for kind in type(task.source).__mro__}
    return _FAR_SOURCE in names or bool(getattr(task.source, "needs_network", False))
