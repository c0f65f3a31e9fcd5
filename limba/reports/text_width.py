"""Texts of the same width on a screen: Chinese, Japanese and Korean characters take two columns, marks none."""

import unicodedata
from collections.abc import Sequence

_WIDE = ("W", "F")
# Marks that stand on the character before, and characters that are not shown.
_WITHOUT_WIDTH = ("Mn", "Me", "Cf")


def width(text: str) -> int:
    """The columns that a text takes in a terminal."""
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    if unicodedata.category(character) in _WITHOUT_WIDTH:
        return 0
    return 1 + (unicodedata.east_asian_width(character) in _WIDE)


def ljust(text: str, columns: int) -> str:
    """A text with blanks behind it, as wide as this at least."""
    return text + " " * (columns - width(text))


def rjust(text: str, columns: int) -> str:
    """A text with blanks before it, as wide as this at least."""
    return " " * (columns - width(text)) + text


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of rows of cells, whose columns begin at the same place; none ends with blanks."""
    widths = [max(map(width, cells)) for cells in zip(*rows, strict=True)]
    return ["  ".join(map(ljust, row, widths)).rstrip() for row in rows]
