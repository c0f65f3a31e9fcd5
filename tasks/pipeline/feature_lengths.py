"""Whether the lengths of a configuration fit the features of its tasks."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from limba.data.contract import TOKEN_TYPES
from limba.tasks.pretraining import denoising
from limba.tasks.registry.tasks import Task

logger = logging.getLogger(__name__)

_OF_MODELS = ("inputs", "targets")


def without_length(task: Any, lengths: Mapping[str, int]) -> list[str]:
    """The features of a task that need a length and have none; a task of SeqIO's may have some that no model reads."""
    is_ours = isinstance(task, Task)
    needed = [name for name, x in task.output_features.items() if is_ours or (x.required and name in _OF_MODELS)]
    return [name for name in needed if name not in of_all(lengths)]


def of_all(lengths: Mapping[str, int]) -> dict[str, int]:
    """The lengths with those that follow from others: token types are as many as the tokens."""
    return {**lengths, **{f"{name}{TOKEN_TYPES}": length for name, length in lengths.items()}}


def check(tasks: Sequence[Any], lengths: Mapping[str, int]) -> None:
    """Checks the lengths of all features, and warns if targets are longer than corrupted windows ever are.

    Raises:
      ValueError: for a feature without a length, and for targets that would be cut.
    """
    longest = 0
    for task in tasks:
        if missing := without_length(task, lengths):
            raise ValueError(f"task_feature_lengths {dict(lengths)} has no length for {missing} of task {task.name!r}.")
        for step in task.preprocessors:
            if not isinstance(step, denoising.Denoise):
                continue
            step.check(task.output_features, lengths)
            needed = step.lengths(task.output_features, lengths)["targets"]
            if lengths["targets"] < needed:
                where = _describe_lengths(task, lengths, needed)
                raise ValueError(f"{where}, and {lengths['targets']} would cut them; set targets to {needed}.")
            if needed > longest:
                longest, where = needed, _describe_lengths(task, lengths, needed)
    waste = 100 * (lengths["targets"] - longest) / lengths["targets"] if longest else 0
    # The tokens of a mode make windows a little shorter; of a mixture, the longest targets count.
    if waste >= 1:
        logger.warning(
            "%s, and %d wastes %.0f%% of the decoder on padding; set it to %d.",
            where,
            lengths["targets"],
            waste,
            longest,
        )


def _describe_lengths(task: Any, lengths: Mapping[str, int], needed: int) -> str:
    return f"task_feature_lengths of {task.name!r}: {lengths.get('inputs', 0)} inputs are {needed} targets"
