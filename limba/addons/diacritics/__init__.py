"""Restoring diacritics: the marks of languages, tasks made of plain text, and scores.

Task modules use these names; no other room may import it.
"""

from limba.addons.diacritics.diacritics_tasks import register_diacritics_task
from limba.addons.diacritics.marks import Language

__all__ = ["Language", "register_diacritics_task"]
