"""Pre-training tasks: one call makes a corpus a task, or a mixture of denoisers.

The rooms of `tasks` above `vocabularies` may import it. Task modules use these names.
"""

from limba.tasks.pretraining.pretraining_tasks import register_pretraining_task, register_ul2_mixture

__all__ = ["register_pretraining_task", "register_ul2_mixture"]
