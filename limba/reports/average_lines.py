"""The metrics of an average of the parameters, in folders of their own: `training_eval/my_task_average`."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

Line = Mapping[str, Any]

_SUFFIX = "_average"


def name_of(task: str) -> str:
    """What the evaluation of a task is called that was made with the average of the parameters."""
    return task + _SUFFIX


def is_of_average(dataset: str, datasets: Collection[str]) -> bool:
    """Whether a folder of metrics is of an average, among all folders of a run: then the parameters have one, too."""
    return dataset.endswith(_SUFFIX) and dataset.removesuffix(_SUFFIX) in datasets


def of_parameters(lines: Iterable[Line]) -> list[Line]:
    """The lines of `metrics.jsonl` without those of averages."""
    lines = list(lines)
    datasets = {line["dataset"] for line in lines}
    return [line for line in lines if not is_of_average(line["dataset"], datasets)]


def of_average(lines: Iterable[Line]) -> list[Line]:
    """The lines of averages alone, under the names of the tasks."""
    lines = list(lines)
    datasets = {line["dataset"] for line in lines}
    found = [line for line in lines if is_of_average(line["dataset"], datasets)]
    return [{**line, "dataset": line["dataset"].removesuffix(_SUFFIX)} for line in found]
