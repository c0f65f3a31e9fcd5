"""A text stream whose texts are changed before they are written: without credentials, without a terminal's commands."""

from collections.abc import Callable
from typing import Any


class ChangedStream:
    """Writes to a stream what a function makes of each text.

    Attributes:
      original: the stream.
    """

    def __init__(self, original: Any, change: Callable[[str], str]):
        self.original, self._change = original, change

    def write(self, text: str) -> int:
        self.original.write(self._change(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)
