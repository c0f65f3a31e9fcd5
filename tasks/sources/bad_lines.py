"""Which line of a file of text is damaged, counted as an editor counts, and what is wrong with it."""

import csv
import json
from collections.abc import Iterator
from typing import BinaryIO

from limba.machine import untrusted_json
from tasks.sources import arrow_tables


def find(shard: arrow_tables.Shard) -> str | None:
    """What is wrong with the first damaged line of a local file, such as "line 4 is no JSON: …".

    None if no line is; or of formats without lines, and of files that are far away.
    """
    if shard.is_remote:
        return None
    try:
        builder = arrow_tables.builder_of(shard.path)
        with shard.open() as file:
            lines = {"json": _of_json, "csv": _of_csv, "text": _of_text}.get(builder)
            return None if lines is None else lines(file)
    except (ValueError, OSError, EOFError):  # Not even its bytes can be read.
        return None


def _texts(file: BinaryIO) -> Iterator[tuple[int, str | None, str]]:
    """The lines by number: text and nothing; or None, and what is wrong."""
    for number, line in enumerate(file, 1):
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8"), ""
        except UnicodeDecodeError as error:
            before = line[: error.start].decode()
            what = f"line {number} is not UTF-8: byte 0x{line[error.start]:02x} at column {len(before) + 1}"
            yield number, None, what


def _of_text(file: BinaryIO) -> str | None:
    return next((wrong for _, _, wrong in _texts(file) if wrong), None)


def _of_json(file: BinaryIO) -> str | None:
    for number, text, wrong in _texts(file):
        if text is None:
            return wrong
        if not text.strip():
            continue
        if number == 1 and text.lstrip()[0] == "[":
            return None  # One list of all rows: its lines mean nothing.
        try:
            untrusted_json.NestingGuard().feed(text.encode())
            value = json.loads(text)
        except json.JSONDecodeError as error:
            return f"line {number} is no JSON: {error.msg}, column {error.colno}"
        except untrusted_json.TooDeepError:
            return f"line {number} has more than {untrusted_json.MOST_DEPTH} brackets inside of each other"
        except ValueError:  # Python reads numbers of 4300 digits at most.
            return f"line {number} has a number of too many digits"
        if not isinstance(value, dict):
            kinds = {list: "a list", str: "a text", type(None): "null"}
            return f'line {number} is {kinds.get(type(value), "a number")}, and a row is an object: {{"text": …}}'
    return None


def _of_csv(file: BinaryIO) -> str | None:
    wrong_bytes: list[str] = []

    def texts() -> Iterator[str]:
        for _, text, wrong in _texts(file):
            if text is None:
                wrong_bytes.append(wrong)
                return
            yield text

    rows = csv.reader(texts())
    header = next(rows, [])
    for row in rows:
        if len(row) > len(header):
            return f"line {rows.line_num} has {len(row)} fields, and the header {len(header)}"
    return wrong_bytes[0] if wrong_bytes else None
