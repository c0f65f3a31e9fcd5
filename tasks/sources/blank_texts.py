"""Documents without a text, which training leaves out: how many there are, and where the first is."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from limba.tasks.sources.sharded import ShardedSource

# What is looked at before a run: documents, and bytes of the column.
_MOST_DOCUMENTS, _MOST_BYTES = 20_000, 32 << 20


@dataclasses.dataclass(frozen=True)
class BlankTexts:
    """What the first documents of a split have.

    Attributes:
      count, documents: those without a text, of how many.
      is_all: whether the split has no more documents.
      file, row: of the first one without a text, if there is one; rows count from 0.
    """

    count: int
    documents: int
    is_all: bool
    file: str = ""
    row: int = 0

    def describe(self, split: str, column: str) -> str:
        """A sentence with the number and the first place; empty if there are none."""
        if not self.count:
            return ""
        of = "" if self.is_all else "first "
        return (
            f"{self.count:,} of the {of}{self.documents:,} documents of split {split!r} have no text in the column "
            f"{column!r} (null, missing or blank) and are left out; the first is row {self.row} (counted from 0) of "
            f"{self.file}."
        )


def find(source: ShardedSource, split: str, column: str) -> BlankTexts:
    """Looks at the first documents of a split; at none of files that are far away, which cost a connection more.

    Raises:
      ValueError, OSError, BrokenFileError: if they cannot be read.
    """
    if source.is_remote(split):
        return BlankTexts(0, 0, False)
    count = documents = num_bytes = 0
    first: tuple[str, int] = "", 0
    for file, rows, is_blank, size in _blanks(source, split, column):
        if not count and is_blank.any():
            first = file, int(rows[np.argmax(is_blank)])
        count += int(is_blank.sum())
        documents += len(rows)
        num_bytes += size
        if documents >= _MOST_DOCUMENTS or num_bytes >= _MOST_BYTES:
            return BlankTexts(count, documents, False, *first)
    return BlankTexts(count, documents, True, *first)


def first(source: ShardedSource, split: str, column: str) -> tuple[str, int]:
    """The file and the row, from 0, of the first document without a text; ("", 0) if there is none."""
    for file, rows, is_blank, _ in _blanks(source, split, column):
        if is_blank.any():
            return file, int(rows[np.argmax(is_blank)])
    return "", 0


def _blanks(source: ShardedSource, split: str, column: str) -> Iterator[tuple[str, Any, Any, int]]:
    """The file, the rows there, whether each has no text, and the bytes, of chunk after chunk."""
    for file, rows, table in source.numbered_tables(split):
        texts = table.column(column)
        if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
            yield file, rows, np.asarray(texts.is_null()), texts.nbytes
            continue
        is_blank = [not (text and text.strip()) for text in texts.to_pylist()]
        yield file, rows, np.array(is_blank, bool), texts.nbytes
