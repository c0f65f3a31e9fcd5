"""Files of JSON lines that a run appends to, and reads when it resumes.

A kill, a full disk or an editor may leave lines that are not records. Readers pass over them; a run that resumes moves
them to a file beside, so that nothing is lost and the run goes on.
"""

import io
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from limba.files import json_text, storage, written_files
from limba.files.storage import AnyPath

logger = logging.getLogger(__name__)

Record = dict[str, Any]
# A value of JSON takes up to 30 times its bytes. The longest lines are predictions, of some thousand tokens.
_MOST_OF_LINE = 16 * 2**20


def is_number(value: Any) -> bool:
    """Whether it is a number that an array holds; Python's whole numbers have no end."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**63)


def read(path: AnyPath, is_record: Callable[[Record], bool]) -> list[Record]:
    """The records of a file, in its order; [] if it does not exist."""
    return _parse(path, is_record)[0]


def read_and_repair(path: Path, is_record: Callable[[Record], bool]) -> list[Record]:
    """The records of a file, from which damaged lines are removed: they are in `<name>.damaged` then.

    Raises:
      ValueError: if they are in a link's target, of which the run would keep a copy, or longer than any record.
    """
    records, damaged = _parse(path, is_record)
    if damaged:
        written_files.refuse_link(path)
        if (longest := max(map(len, damaged))) > _MOST_OF_LINE:  # In a file with holes it takes no place yet.
            raise ValueError(f"{path} has a line of {longest:,} bytes, which no run writes. Remove the line.")
        beside = path.with_name(f"{path.name}.damaged")
        with written_files.append(beside, "ab") as file:
            file.writelines(line + b"\n" for line in damaged)
        storage.replace_text(path, "".join(to_line(record) for record in records))
        logger.warning(
            "%s had %d damaged %s, which %s in %s now.",
            path,
            len(damaged),
            "line" if len(damaged) == 1 else "lines",
            "is" if len(damaged) == 1 else "are",
            beside.name,
        )
    return records


def to_line(record: Record) -> str:
    return json_text.dumps(record, ensure_ascii=False) + "\n"


def _parse(path: AnyPath, is_record: Callable[[Record], bool]) -> tuple[list[Record], list[bytes]]:
    records, damaged = [], []
    for line, record in each(path, is_record):
        if record is not None:
            records.append(record)
        else:
            damaged.append(line)
    return records, damaged


def each(path: AnyPath, is_record: Callable[[Record], bool]) -> Iterator[tuple[bytes, Record | None]]:
    """The lines of a file with their records, None of a damaged line; nothing if it does not exist."""
    yield from parsed(lines(path) if storage.is_file(path) else [], is_record)


def lines(path: AnyPath) -> Iterator[bytes]:
    """The lines of a file, one after the other: a list of them takes more memory than the file, if they are empty."""
    return (line.rstrip(b"\r\n") for line in io.BytesIO(storage.read_bytes(path)))


def parsed(lines: Iterable[bytes], is_record: Callable[[Record], bool]) -> Iterator[tuple[bytes, Record | None]]:
    """Lines that are not empty with their records, None of a damaged line."""
    for line in lines:
        if not line or line.isspace():
            continue
        try:
            # Of bytes: errors of UTF-8 are ValueErrors as well, also those of half of a character, in an escape.
            record = json.loads(line) if len(line) <= _MOST_OF_LINE else None
            if b"\\ud" in line or b"\\uD" in line:
                json_text.dumps(record, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and is_record(record):
            yield line, record
        else:
            yield line, None
