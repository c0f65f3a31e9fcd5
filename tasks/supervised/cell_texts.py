"""The values of a table's cells as texts."""

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
