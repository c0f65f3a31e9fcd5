"""JSON rows with the columns that a task reads and no others: those may have any types, which the parsers would mix.

The text of what is kept does not change, so that numbers, escapes and damaged characters stay as they are.
"""

import io
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from limba.machine import json_text

_BLANKS = re.compile(r"[ \t\r\n]*")
# Numbers are not made, only their ends are found.
_DECODER = json.JSONDecoder(parse_int=len, parse_float=len, strict=False)
_BYTE_ORDER_MARK = "\ufeff"


def only_columns(file: BinaryIO, columns: Sequence[str], names: dict[str, None]) -> BinaryIO:
    """The same rows, to be read from front to back; a column that a row lacks is null in it.

    Files of other shapes than a row in each line, or one list of rows, and damaged lines stay as they are.

    Args:
      columns: that are kept.
      names: gets the names of all columns, in their order, as the rows are read.
    """
    return io.BufferedReader(_Pieces(file, _rewritten(file, columns, names)), 1 << 20)


class _Pieces(io.RawIOBase):
    """A file whose content comes from a generator."""

    def __init__(self, file: BinaryIO, pieces: Iterator[bytes]):
        super().__init__()
        self._file = file
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            if (piece := next(self._pieces, None)) is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _rewritten(file: BinaryIO, columns: Sequence[str], names: dict[str, None]) -> Iterator[bytes]:
    is_of_lines = False  # known after the first line that is not blank
    for line in file:
        if not line.strip():  # Of a file with nothing else, a loader would learn that there are no columns.
            continue
        text = _decode(line)
        begin = _after_blanks(text, 1 if text.startswith(_BYTE_ORDER_MARK) else 0)
        if not is_of_lines and text[begin : begin + 1] == "[":
            text = _decode(line + file.read())
            yield _encode(_list(text, begin, columns, names) or text)
            return
        row = _row(text, begin, columns, names)
        if not is_of_lines and row is None:
            yield line
            while piece := file.read(1 << 20):
                yield piece
            return
        is_of_lines = True
        yield line if row is None else _encode(text[:begin] + row[0] + text[row[1] :])


def _list(text: str, begin: int, columns: Sequence[str], names: dict[str, None]) -> str | None:
    """A text with a list of rows that begins there; None if it is anything else."""
    rows: list[str] = []
    end = begin
    while text[end : end + 1] == ("," if rows else "["):
        row = _row(text, _after_blanks(text, end + 1), columns, names)
        if row is None:
            return None
        rows.append(row[0])
        end = _after_blanks(text, row[1])
    return f"{text[:begin]}[{','.join(rows)}{text[end:]}" if rows and text[end : end + 1] == "]" else None


def _row(text: str, begin: int, columns: Sequence[str], names: dict[str, None]) -> tuple[str, int] | None:
    """The object that begins there, and where it ends; None if there is none."""
    if text[begin : begin + 1] != "{":
        return None
    kept: list[str] = []
    found: list[str] = []
    end = begin
    try:
        while text[end] == ("," if found else "{"):
            start = _after_blanks(text, end + 1)
            if not found and text[start] == "}":
                end = start
                break
            if text[start] != '"':
                return None
            name, end = _DECODER.raw_decode(text, start)
            end = _after_blanks(text, end)
            if text[end] != ":":
                return None
            end = _DECODER.raw_decode(text, _after_blanks(text, end + 1))[1]
            if name in columns:
                kept.append(text[start:end])
            found.append(name)
            end = _after_blanks(text, end)
        if text[end] != "}":
            return None
    except (IndexError, ValueError):  # It is not JSON, or not all of it.
        return None
    names.update(dict.fromkeys(found))
    kept += [f"{json_text.dumps(column)}: null" for column in columns if column not in found]
    return f"{{{', '.join(kept)}}}", end + 1


def _after_blanks(text: str, begin: int) -> int:
    match = _BLANKS.match(text, begin)
    assert match is not None
    return match.end()


def _decode(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
