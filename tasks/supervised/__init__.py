"""Supervised tasks: rows of a data set as texts and answers, the table of known data sets, their metrics.

The rooms of `tasks` above `pretraining` may import it. Task modules use these names.
"""

from typing import Any

from limba.addons import table
from limba.tasks.supervised.dataset import SupervisedDataset
from limba.tasks.supervised.supervised_tasks import register_benchmark, register_supervised_task

__all__ = [
    "SupervisedDataset",
    "register_benchmark",
    "register_supervised_task",
]


def __getattr__(name: str) -> Any:
    """Names of this package that add-ons have."""
    return table.named(__name__, name)
