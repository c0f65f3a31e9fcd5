"""JSON that others wrote, parsed within limits: its size, the depth of its brackets, the number of its values.

Python's parser and Arrow's call themselves for every bracket inside of another: Arrow's ends the process on a line of
100,000 of them. So brackets are counted before a parser sees the text.
"""

import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from limba.files import untrusted_files
from limba.files.number_ranges import AT_LEAST_0

# Of brackets in one another. Python's parser stops at about 1,000, minus the depth of its caller.
MOST_DEPTH = 200
# A value takes about 80 bytes of memory, and at least 2 of a file.
MOST_VALUES = 5_000_000

_QUOTE, _NEWLINE = 0x22, 0x0A
_SYMBOLS = b'[{]}"\n'
_OTHERS = bytes(sorted(set(range(256)) - set(_SYMBOLS)))
# A string without an end matches to the end of the text, so it is read once and not from each of its escaped quotes.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
# An escape; group 1 is half of a character that needs two, without its other half.
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|(u[dD][89a-fA-F][\da-fA-F]{2})|.)")
# From the first digit of a number: a search from every digit would take minutes for many long numbers.
_LONG_NUMBER = re.compile(r"(?<!\d)\d{4301}")


class TooDeepError(ValueError):
    """Brackets inside of each other, more than any parser should see."""


class NestingGuard:
    """Counts brackets in JSON, or in lines of JSON, that comes in pieces.

    A string of JSON ends in its line. So a quote too many changes the count of one line only, on which a parser fails.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._line = 1
        self._in_string = 0
        self._escaped = False

    def feed(self, piece: bytes) -> None:
        """Takes the next bytes.

        Raises:
          TooDeepError: it names the line.
        """
        piece = self._without_escapes(piece)
        symbols = np.frombuffer(piece.translate(None, _OTHERS), np.uint8)
        if not symbols.size:
            return
        is_newline = symbols == _NEWLINE
        quotes = np.cumsum(symbols == _QUOTE) + self._in_string
        before_line = np.maximum.accumulate(np.where(is_newline, quotes, 0))
        in_string = (quotes - before_line) & 1
        bracket = symbols | 0x20  # [ and {, ] and } differ in this bit.
        steps = np.where(in_string, 0, (bracket == 0x7B).astype(np.int64) - (bracket == 0x7D))
        depths = np.cumsum(steps) + self._depth
        depths -= np.minimum.accumulate(np.minimum(depths, 0))  # Closing what is not open leaves the depth at 0.
        if depths.max() > MOST_DEPTH:
            line = self._line + int(is_newline[: int(np.argmax(depths > MOST_DEPTH))].sum())
            raise TooDeepError(f"line {line} has more than {MOST_DEPTH} brackets inside of each other")
        self._depth, self._in_string = int(depths[-1]), int(in_string[-1])
        self._line += int(is_newline.sum())

    def _without_escapes(self, piece: bytes) -> bytes:
        if self._escaped and piece:
            piece, self._escaped = b"_" + piece[1:], False
        if b"\\" not in piece:
            return piece
        piece = piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        self._escaped = piece.endswith(b"\\")
        return piece


def guarded(file: BinaryIO) -> BinaryIO:
    """The same JSON, to be read from front to back. Reading raises TooDeepError before a parser sees such a line."""
    return io.BufferedReader(_NotTooDeep(file), 1 << 20)


class _NotTooDeep(io.RawIOBase):
    """JSON from front to back; what is too deep is not given away."""

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file
        self._guard = NestingGuard()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read(len(buffer))
        self._guard.feed(piece)
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()


def read(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
      FileNotFoundError: if it is not there, or is a link that leads to nothing.
      ValueError: if it is not a file, or as `parse`.
    """
    return parse(untrusted_files.read_bytes(path), str(path))


def read_object(path: Path) -> dict[str, Any]:
    """As `read`, of a file that holds one object of keys and values."""
    return _object(read(path), str(path))


def parse(content: bytes | str, where: str) -> Any:
    """The value of a JSON text in UTF-8. `where` names it in messages, which have the line too.

    Raises:
      ValueError: if it is not JSON, too large, nested too deeply, has a key twice in one object, a number of too many
        digits, or half of a character.
    """
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    text = untrusted_files.decode(raw, where)
    _check_size(raw, where)
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error.msg}, line {error.lineno} column {error.colno}.") from None
    except RecursionError:
        raise ValueError(f"{where} has too many brackets inside of each other.") from None
    except _TwiceError as error:
        raise ValueError(f"{where} has the key {error} twice in one object; keep one of them.") from None
    except ValueError as error:  # Python reads numbers of 4300 digits at most.
        long = _LONG_NUMBER.search(text)
        place = f"line {text.count(chr(10), 0, long.start()) + 1}" if long else str(error)
        raise ValueError(f"{where} has a number of too many digits: {place}.") from None
    _check_characters(text, where)
    return value


def parse_object(content: bytes | str, where: str) -> dict[str, Any]:
    """As `parse`, of a text that holds one object of keys and values."""
    return _object(parse(content, where), where)


# What the values of a record may be, by key: whether one is right, and what it is, for messages.
Values = Mapping[str, tuple[Callable[[Any], bool], str]]
_COUNT = AT_LEAST_0._replace(below=2**31)
COUNT = _COUNT.has, str(_COUNT)


def wrong_value(record: Mapping[str, Any], values: Values) -> str | None:
    """The first value of a record that is not right, as "KEY is VALUE; it is …"; None if there is none."""
    for key, (is_right, what) in values.items():
        if key in record and not is_right(record[key]):
            return f"{key} is {untrusted_files.shown(record[key])}; it is {what}"
    return None


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} holds {untrusted_files.shown(value)}; it is one object of keys and values: {{…}}.")
    return value


def _check_size(raw: bytes, where: str) -> None:
    if len(raw) > untrusted_files.MOST_BYTES:
        raise ValueError(f"{where} has {len(raw):,} bytes of JSON; at most {untrusted_files.MOST_BYTES:,} are read.")
    try:
        NestingGuard().feed(raw)
    except TooDeepError as error:
        raise ValueError(f"{where}: {error}.") from None
    if sum(map(raw.count, (b",", b"[", b"{"))) > MOST_VALUES:
        outside = _STRING.sub(b"", raw)
        if (values := sum(map(outside.count, (b",", b"[", b"{")))) > MOST_VALUES:
            raise ValueError(f"{where} has {values:,} values; at most {MOST_VALUES:,} are read.")


class _TwiceError(Exception):
    """The key that an object has twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwiceError(untrusted_files.shown(key))
            seen.add(key)
    return table


def _check_characters(text: str, where: str) -> None:
    """Raises ValueError for half of a character, which no file and no terminal takes."""
    if "\\ud" not in text and "\\uD" not in text:
        return
    for escape in _ESCAPE.finditer(text):
        if escape[1]:
            line, column = text.count("\n", 0, escape.start()) + 1, escape.start() - text.rfind("\n", 0, escape.start())
            raise ValueError(
                f"{where} has half of a character, \\{escape[1]}, at line {line} column {column}; write the character."
            )
