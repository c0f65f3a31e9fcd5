"""JSON rows with the columns that a task reads and no others: those may have any types, which the parsers would mix.

The text of what is kept does not change, so that numbers, escapes and damaged characters stay as they are.
"""

import io
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from limba.files import json_text

_BLANKS = re.compile(r"[ \t\r\n]*")
# Numbers are not made, only their ends are found.
_DECODER = json.JSONDecoder(parse_int=len, parse_float=len, strict=False)
_BYTE_ORDER_MARK = "\ufeff"
# Where the rows of a file that is one object are, and the bytes in which that key is looked for.
_ROWS, _BEGINNING = "data", 1 << 16


def only_columns(file: BinaryIO, columns: Sequence[str], names: dict[str, None]) -> BinaryIO:
    """The same rows, to be read from front to back; a column that a row lacks is null in it.

    Of `{"version": …, "data": [row, …]}`, as SQuAD's files are, the rows are those of "data". Files of other shapes
    than a row in each line, one list of rows, or that, and damaged lines stay as they are.

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
    lines: Iterator[bytes] = iter(file)
    while line := next(lines, b""):
        if not line.strip():  # Of a file with nothing else, a loader would learn that there are no columns.
            continue
        text = _decode(line)
        begin = _after_blanks(text, 1 if text.startswith(_BYTE_ORDER_MARK) else 0)
        if not is_of_lines and text[begin : begin + 1] == "[":
            text = _decode(line + file.read())
            yield _encode(_list(text, begin, columns, names) or text)
            return
        found: dict[str, None] = {}
        row = _row(text, begin, columns, found)
        if not is_of_lines and _ROWS not in columns and (row is None or _is_around_rows(found, columns)):
            if row is None:  # The object may have several lines.
                line += file.read(_BEGINNING)
                line += file.read() if f'"{_ROWS}"'.encode() in line else b""
                following = b""
            else:
                following = next(filter(bytes.strip, file), b"")
                lines = itertools.chain([following], file)
            if not following and (rows := _inner_list(_decode(line), begin, columns, names)) is not None:
                yield _encode(rows)
                return
        names.update(found)
        if not is_of_lines and row is None:
            yield line
            while piece := file.read(1 << 20):
                yield piece
            return
        is_of_lines = True
        yield line if row is None else _encode(text[:begin] + row[0] + text[row[1] :])


def _is_around_rows(found: dict[str, None], columns: Sequence[str]) -> bool:
    """Whether an object with the keys `found` is no row itself, and may have the rows."""
    return _ROWS in found and not any(column in found for column in columns)


def _inner_list(text: str, begin: int, columns: Sequence[str], names: dict[str, None]) -> str | None:
    """The list of rows of an object that begins there and is all of the text; None if there is none."""
    end = begin
    found = None
    try:
        while text[end] == ("{" if end == begin else ","):
            name, end = _DECODER.raw_decode(text, _after_blanks(text, end + 1))
            start = _after_blanks(text, _after_blanks(text, end) + 1)  # behind the colon
            if name == _ROWS and text[start] == "[":
                if (found := _rows(text, start, columns, names)) is None:
                    return None
                end = found[1]
            else:
                end = _DECODER.raw_decode(text, start)[1]
            end = _after_blanks(text, end)
    except (IndexError, ValueError):  # It is not JSON, or not all of it.
        return None
    is_all = text[end : end + 1] == "}" and _after_blanks(text, end + 1) == len(text)
    return None if found is None or not is_all else found[0]


def _list(text: str, begin: int, columns: Sequence[str], names: dict[str, None]) -> str | None:
    """A text with a list of rows that begins there; None if it is anything else."""
    found = _rows(text, begin, columns, names)
    return None if found is None else f"{text[:begin]}{found[0]}{text[found[1] :]}"


def _rows(text: str, begin: int, columns: Sequence[str], names: dict[str, None]) -> tuple[str, int] | None:
    """The list of rows that begins there, and where it ends; None if there is none."""
    rows: list[str] = []
    end = begin
    while text[end : end + 1] == ("," if rows else "["):
        row = _row(text, _after_blanks(text, end + 1), columns, names)
        if row is None:
            return None
        rows.append(row[0])
        end = _after_blanks(text, row[1])
    return (f"[{','.join(rows)}]", end + 1) if rows and text[end : end + 1] == "]" else None


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
