"""Supervised tasks: rows of a data set as texts and answers, the table of known data sets, their metrics.

The rooms of `tasks` above `pretraining` may import it. Task modules use these names.
"""

from limba.tasks.supervised.dataset import SupervisedDataset
from limba.tasks.supervised.instructions.instruction_tasks import (
    register_instruction_mixture,
    register_instruction_task,
)
from limba.tasks.supervised.supervised_tasks import register_benchmark, register_supervised_task
from limba.tasks.supervised.token_labels import TokenDataset, register_token_task

__all__ = [
    "SupervisedDataset",
    "TokenDataset",
    "register_benchmark",
    "register_instruction_mixture",
    "register_instruction_task",
    "register_supervised_task",
    "register_token_task",
]
