"""Rows of data as columns of arrays.

A column has an entry a row: numbers `[rows, …]`, texts as an object array of bytes, or `Tokens`.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from limba.tasks.sources.chunks import Rows


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
Columns = dict[str, Column]


Part = TypeVar("Part", Rows, Columns)


def texts(rows: Rows, column: str) -> Any:
    """A column of texts, bytes. Raises ValueError if it has numbers."""
    found = rows.columns[column]
    if isinstance(found, np.ndarray) and found.dtype == object:
        return found
    example = f", such as {found[0]}" if isinstance(found, np.ndarray) and len(found) else ""
    raise ValueError(f"Column {column!r} has numbers{example}, and the task needs texts; text_column names the column.")


def num_rows(rows: Rows | Columns) -> int:
    column = rows.document if isinstance(rows, Rows) else next(iter(rows.values()))
    return len(column.lengths if isinstance(column, Tokens) else column)


def take(rows: Part, key: Any) -> Part:
    """The rows that a slice or an array of indices names."""
    return _map(lambda columns: columns[0][key], [rows])


def concatenate(parts: Sequence[Part]) -> Part:
    """All rows of several parts with the same columns."""
    return parts[0] if len(parts) == 1 else _map(_join, parts)


def _map(function: Callable[[Sequence[Column]], Column], parts: Sequence[Any]) -> Any:
    """What a function makes of each column of all parts."""
    if isinstance(parts[0], Rows):
        columns = _map(function, [part.columns for part in parts])
        return Rows(columns, *(function([getattr(part, name) for part in parts]) for name in ("document", "number")))
    return {name: function([part[name] for part in parts]) for name in parts[0]}


def _join(columns: Sequence[Any]) -> Column:
    if not isinstance(columns[0], Tokens):
        return np.concatenate(columns)
    longest = max(column.padded.shape[1] for column in columns)
    lengths = np.concatenate([column.lengths for column in columns])
    return Tokens(np.concatenate([column.pad(longest) for column in columns]), lengths)


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
