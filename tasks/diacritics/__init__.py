"""Restoring diacritics: the marks of languages, tasks made of plain text, and scores.

Task modules, `tasks.examples` and `tasks.lint` may import it.
"""

from tasks.diacritics.diacritics_tasks import register_diacritics_task
from tasks.diacritics.marks import Language

__all__ = ["Language", "register_diacritics_task"]
