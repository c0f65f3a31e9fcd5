"""Which line of a file of text is damaged, counted as an editor counts, and what is wrong with it."""

import codecs
import csv
import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from limba.files import json_text, untrusted_json
from limba.tasks.sources.damaged_files import shards

_TWICE, _HALF = "Leave one of them out.", "Write the character whole, or leave it out."
_QUOTE = "Close it, or write a quote inside of a text twice."
_KINDS = {list: "a list", dict: "an object", str: "a text", bool: "true or false", type(None): "null"}


class BadLine(NamedTuple):
    """What is wrong with a line, such as "line 4 is not JSON: …", and a sentence with the remedy."""

    what: str
    remedy: str = "Repair the line."


def find(shard: shards.Shard, builder: str | None, columns: Sequence[str]) -> BadLine | None:
    """The first damaged line of a local file; None if no line is, of formats without lines, and of files far away.

    Args:
      builder: the loader: "json", "text", "csv" or "parquet".
      columns: of JSON, those whose values must be of one type.
    """
    if shard.is_remote:
        return None
    try:
        with shard.open_lines() as file:
            if builder == "csv":
                return _of_csv(file, "\t" if ".tsv" in shard.path.suffixes else ",")
            if builder == "json":
                return _of_json(file, columns)
            return _of_text(file) if builder == "text" else None
    except (ValueError, OSError, EOFError):  # Not even its bytes can be read.
        return None


def _texts(file: BinaryIO) -> Iterator[tuple[int, str, BadLine | None]]:
    """The lines by number: text and None; or no text, and what is wrong."""
    for number, line in enumerate(file, 1):
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8"), None
        except UnicodeDecodeError as error:
            before = line[: error.start].decode()
            is_utf_16 = number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            encoding = "is UTF-16, not UTF-8" if is_utf_16 else "is not UTF-8"
            what = f"line {number} {encoding}: byte 0x{line[error.start]:02x} at column {len(before) + 1}"
            yield number, "", BadLine(what, "Save it as UTF-8.")


def _of_text(file: BinaryIO) -> BadLine | None:
    return next((wrong for _, _, wrong in _texts(file) if wrong), None)


def _of_json(file: BinaryIO, columns: Sequence[str]) -> BadLine | None:
    first: dict[str, tuple[str, int]] = {}  # kind of value and line, by column
    mixed = None
    for number, text, wrong in _texts(file):
        if wrong is not None:
            return wrong
        if not text.strip():
            continue
        if number == 1 and text.lstrip()[0] == "[" and not _is_list_of_others(text):
            return _of_list(text.encode() + file.read(), columns)
        try:
            value = _load(text)
        except json.JSONDecodeError as error:
            return BadLine(f"line {number} is not JSON: {error.msg}, column {error.colno}")
        except untrusted_json.TooDeepError:
            return BadLine(f"line {number} has more than {untrusted_json.MOST_DEPTH} brackets inside of each other")
        except ValueError:  # Python reads numbers of 4300 digits at most.
            return BadLine(f"line {number} has a number of too many digits")
        if not isinstance(value, _Object):
            return BadLine(f'line {number} is {_kind(value)}, and a row is an object: {{"text": …}}')
        if refused := _in_row(value, columns):
            return refused._replace(what=f"line {number} has {refused.what}")
        for name, field in value.items():
            if field is None or name not in columns:
                continue
            kind, line = first.setdefault(name, (_kind(field), number))
            if kind != _kind(field) and mixed is None:
                shown = json_text.dumps(field, ensure_ascii=False)[:40]
                mixed = BadLine(
                    f"line {number} has {_kind(field)} as {name!r}, {shown}, and line {line} {kind}",
                    "The values of a column are of one type: repair the line.",
                )
    return mixed


class _Object(dict):
    """An object of JSON, with the first of its keys that it has twice."""

    doubled: str | None = None


def _load(text: str) -> Any:
    """Raises ValueError for what is no JSON, or has too many brackets or digits."""
    untrusted_json.NestingGuard().feed(text.encode())
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) < len(pairs):
        made.doubled = next(name for i, (name, _) in enumerate(pairs) if any(name == x for x, _ in pairs[:i]))
    return made


def _in_row(row: _Object, columns: Sequence[str]) -> BadLine | None:
    """What Arrow refuses in the columns of a row: a key that is there twice, or half of a character."""
    if row.doubled in columns:
        return BadLine(f"the key {row.doubled!r} twice", _TWICE)
    waiting = [(name, row[name]) for name in columns if name in row]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, _Object):
            if value.doubled is not None:
                return BadLine(f"the key {value.doubled!r} twice, in {name!r}", _TWICE)
            waiting += [(name, part) for pair in value.items() for part in pair]
        elif isinstance(value, list):
            waiting += [(name, part) for part in value]
        elif isinstance(value, str) and (half := next((c for c in value if "\ud800" <= c <= "\udfff"), None)):
            return BadLine(f"half of a character, \\u{ord(half):x}, in {name!r}", _HALF)
    return None


def _of_list(content: bytes, columns: Sequence[str]) -> BadLine | None:
    """The first row of one list of all rows that Arrow refuses; None if the list is no JSON."""
    try:
        rows = _load(content.decode())
    except ValueError:
        return None
    found = ((number, _in_row(row, columns)) for number, row in enumerate(rows, 1) if isinstance(row, _Object))
    bad = (x._replace(what=f"row {number} of its list has {x.what}") for number, x in found if x is not None)
    return next(bad, None)


def _is_list_of_others(line: str) -> bool:
    """Whether a line is a whole list of what are not rows."""
    try:
        value = _load(line)
    except ValueError:
        return False
    return bool(value) and not any(isinstance(row, dict) for row in value)


def _kind(value: object) -> str:
    return _KINDS.get(dict if isinstance(value, dict) else type(value), "a number")


def _of_csv(file: BinaryIO, delimiter: str) -> BadLine | None:
    wrong_bytes: list[BadLine] = []
    raw: list[str] = []  # of the row that is read

    def texts() -> Iterator[str]:
        for _, text, wrong in _texts(file):
            if wrong is not None:
                wrong_bytes.append(wrong)
                return
            raw.append(text)
            yield text

    rows = csv.reader(texts(), delimiter=delimiter)
    begin, header = 1, list[str]()
    while True:
        try:
            row = next(rows, None)
        except csv.Error:  # A field of more than 131072 characters.
            return BadLine(f"line {begin} opens a quote that is not closed, or only far behind it", _QUOTE)
        if row is None or wrong_bytes:
            return wrong_bytes[0] if wrong_bytes else None
        if _is_open(raw, delimiter):
            return BadLine(f"line {begin} opens a quote that is not closed", _QUOTE)
        header = header or row
        if len(row) > (fields := len(header)):
            if other := next((mark for mark in (";", "\t", "|") if fields == 1 and mark in header[0]), None):
                what = f"its header {header[0]!r} is separated by {other!r}, and fields by {delimiter!r}"
                return BadLine(what, "Save it with commas, or with tabs as .tsv.")
            lines = f"line {begin}" if rows.line_num == begin else f"the row of lines {begin} to {rows.line_num}"
            what = f"{lines} has {len(row)} fields, and the header {fields}"
            return BadLine(what, "Put texts that hold the delimiter into double quotes.")
        begin = rows.line_num + 1
        raw.clear()


def _is_open(raw: Sequence[str], delimiter: str) -> bool:
    """Whether a row ends inside of a quote."""
    try:
        list(csv.reader(raw, delimiter=delimiter, strict=True))
    except csv.Error as error:
        return "unexpected end of data" in str(error)
    return False
