"""Tasks and mixtures under SeqIO's names, without TensorFlow; and mixtures whose rates follow from sizes.

The rooms of `tasks` above `vocabularies` may import it. Task modules use these names.
"""

from limba.tasks.registry.tasks import (
    Feature,
    Mixture,
    MixtureRegistry,
    Task,
    TaskRegistry,
    get_mixture_or_task,
    get_subtasks,
)

__all__ = [
    "Feature",
    "Mixture",
    "MixtureRegistry",
    "Task",
    "TaskRegistry",
    "get_mixture_or_task",
    "get_subtasks",
]
