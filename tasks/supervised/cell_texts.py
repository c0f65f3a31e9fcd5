"""The values of a table's cells as texts."""

import re
import unicodedata
from typing import Any

import numpy as np


def as_text(value: Any) -> str:
    """A value as files of text have it: whole numbers without a point, nothing for a missing value."""
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return ""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def plain_text(text: str) -> str:
    """A text without blanks at its ends, and with one between its words."""
    return " ".join(text.split())


def pad_punctuation(text: str) -> str:
    """A text with blanks around each mark of punctuation and each symbol, and one blank in place of several.

    Letters, numbers and `_` stay as they are, in all scripts, with their accents, vowel signs and joiners. Of ASCII it
    is what T5's checkpoints have learned SQuAD with. They had "é" between blanks, too, as T5 itself had until 2022.
    """
    padded = re.sub(r"[^\w\s]", lambda found: f" {found[0]} " if _is_mark(found[0]) else found[0], text)
    return re.sub(r"\s+", " ", padded, flags=re.ASCII)


def _is_mark(character: str) -> bool:
    # Signs that belong to a letter (M) and joiners (Cf) are no characters of words for Python.
    return unicodedata.category(character)[0] != "M" and unicodedata.category(character) != "Cf"
