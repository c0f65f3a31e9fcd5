"""What a start checks of a task and its files where it does not open all of them: without the network."""

import itertools
import logging
from collections.abc import Callable
from typing import Any

from limba.data import contract
from limba.tasks.metrics import metric_packages
from limba.tasks.pipeline import predictions, task_batches
from limba.tasks.registry import Task
from limba.tasks.registry.providers import find_provider
from limba.tasks.registry.tasks import get_subtasks
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.supervised import row_preprocessor

# SeqIO's, whose splits and files a library of data sets looks up.
_FAR_SOURCE = "TfdsDataSource"
# Examples of which metrics tell their names.
_FIRST = 32
logger = logging.getLogger(__name__)


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


def metric_names(config: contract.DatasetConfig) -> dict[str, list[str]]:
    """The names of the numbers that predictions give, by task: those of right predictions of the first examples.

    Left out are tasks whose data or vocabulary are not on this machine, of SeqIO, with metrics that need scores or more
    than texts, or whose metrics do not take so few examples.
    """
    found = {}
    for task in predictions.subtasks(config):
        is_known = isinstance(task, Task) and isinstance(task.source, ShardedSource) and not _is_far(task)
        others = task.score_metric_fns or task.predict_with_aux_metric_fns
        if not is_known or others or not task.metric_fns or config.split not in task.splits:
            continue
        try:
            first = list(itertools.islice(predictions.examples(task, config), _FIRST))
            targets, right = ([predictions.target(task, x, is_target) for x in first] for is_target in (True, False))
            found[task.name] = [name for function in task.metric_fns for name in function(targets, right)]
        except Exception as error:  # A metric of a user's own may raise anything; the evaluation says it.
            logger.info("The names of the metrics of task %s are not known before its evaluation: %s", task.name, error)
    return found


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
