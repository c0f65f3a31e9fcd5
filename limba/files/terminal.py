"""What a terminal obeys in texts of others: answers, examples of data and names of files may hold its commands.

Such a command clears the screen, renames the window, or writes over lines that were printed before. Files and pipes get
the texts as they are.
"""

import contextlib
import re
import sys
from collections.abc import Iterator
from typing import Any

from limba.files.changed_stream import ChangedStream

# Colours, and what progress bars need: the line above, and the end of a line.
_OBEYED = r"\x1b\[(?:[\d;]*m|[AK])"
# The last two turn the letters behind them round, of any script.
_CONTROL = re.compile(rf"({_OBEYED})|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202d\u202e]")
# In place of what is printed, where Limba itself wants it: the screen is empty, and the next text stands at its top.
CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def plain(text: str) -> str:
    """The text with the commands of a terminal written out, colours aside."""
    return text if text.isprintable() else _CONTROL.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    return match[1] or match[0].encode("unicode_escape").decode()


@contextlib.contextmanager
def obeying_colours_alone() -> Iterator[None]:
    """Standard output and standard error, where they are terminals, show texts and run none of their commands."""
    before: tuple[Any, Any] = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (ChangedStream(x, plain) if x is not None and x.isatty() else x for x in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def clear() -> None:
    """Clears the screen, if standard output is a terminal."""
    if isinstance(sys.stdout, ChangedStream):
        sys.stdout.original.write(CLEAR)
