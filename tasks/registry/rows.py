"""Rows of data as columns of arrays.

A column has an entry a row: numbers `[rows, …]`, texts as an object array of bytes, or `Tokens`. The column `document`,
int64 `[rows, 3]`, is (epoch, shard, row) of the document that a row comes from.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Tokens(NamedTuple):
    """Sequences of different lengths: int32 `[rows, longest]`, padded with 0, and their lengths, int64 `[rows]`."""

    padded: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int] | np.ndarray]) -> "Tokens":
        lengths = np.array([len(row) for row in rows], np.int64)
        padded = np.zeros((len(rows), max(lengths, default=0)), np.int32)
        for target, row in zip(padded, rows, strict=True):
            target[: len(row)] = row
        return cls(padded, lengths)

    def __getitem__(self, key: Any) -> Any:  # type: ignore[override]
        """The rows that a slice or an array of indices names."""
        return Tokens(self.padded[key], self.lengths[key])

    def cut(self, length: int) -> "Tokens":
        """Without what follows the first `length` tokens."""
        return Tokens(self.padded[:, :length], np.minimum(self.lengths, length))

    def pad(self, length: int) -> np.ndarray:
        """int32 `[rows, length]`; no row is longer."""
        wide = np.zeros((len(self.lengths), length), np.int32)
        kept = min(length, self.padded.shape[1])
        wide[:, :kept] = self.padded[:, :kept]
        return wide


# An array, or `Tokens`.
Column = Any
Rows = dict[str, Column]


def texts(rows: Mapping[str, Column], column: str) -> Any:
    """A column of texts, bytes. Raises ValueError if it has numbers."""
    found = rows[column]
    if isinstance(found, np.ndarray) and found.dtype == object:
        return found
    example = f", such as {found[0]}" if isinstance(found, np.ndarray) and len(found) else ""
    raise ValueError(f"Column {column!r} has numbers{example}, and the task needs texts; text_column names the column.")


def num_rows(rows: Mapping[str, Column]) -> int:
    column = next(iter(rows.values()))
    return len(column.lengths if isinstance(column, Tokens) else column)


def take(rows: Mapping[str, Column], key: Any) -> Rows:
    """The rows that a slice or an array of indices names."""
    return {name: column[key] for name, column in rows.items()}


def concatenate(parts: Sequence[Mapping[str, Column]]) -> Rows:
    """All rows of several parts with the same columns."""
    if len(parts) == 1:
        return dict(parts[0])
    return {name: _join([part[name] for part in parts]) for name in parts[0]}


def _join(columns: Sequence[Any]) -> Column:
    if not isinstance(columns[0], Tokens):
        return np.concatenate(columns)
    longest = max(column.padded.shape[1] for column in columns)
    lengths = np.concatenate([column.lengths for column in columns])
    return Tokens(np.concatenate([column.pad(longest) for column in columns]), lengths)


def rebatch(parts: Iterable[Mapping[str, Column]], size: int) -> Iterator[Rows]:
    """The same rows, `size` at a time; the last part may be shorter, none is empty."""
    kept: list[Mapping[str, Column]] = []
    count = 0
    for part in parts:
        if not num_rows(part):
            continue
        kept.append(part)
        count += num_rows(part)
        if count < size:
            continue
        whole = concatenate(kept)
        full = count - count % size
        for start in range(0, full, size):
            yield take(whole, slice(start, start + size))
        kept, count = ([take(whole, slice(full, None))] if count > full else []), count - full
    if count:
        yield concatenate(kept)


def skip(parts: Iterable[Mapping[str, Column]], count: int) -> Iterator[Rows]:
    """Without the first `count` rows."""
    for part in parts:
        if count >= (size := num_rows(part)):
            count -= size
            continue
        yield take(part, slice(count, None)) if count else dict(part)
        count = 0


@dataclasses.dataclass(frozen=True)
class ColumnType:
    """What a column of a step's rows holds, for SeqIO's pipelines, which must know it beforehand.

    Attributes:
      dtype: of the numbers, or `object` for texts.
      shape: of one row's entry.
      is_tokens: whether the column is `Tokens`.
    """

    dtype: type
    shape: tuple[int, ...] = ()
    is_tokens: bool = False


TOKENS = ColumnType(np.int32, is_tokens=True)
TEXT = ColumnType(object)
DOCUMENT = ColumnType(np.int64, (3,))
