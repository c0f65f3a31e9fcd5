"""The chunks of one reader: a pure function of counters.

Epoch -> order of the reader's pieces -> numbered chunks of a piece.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from limba.files import json_text
from tasks.sources.chunks import Piece


@dataclasses.dataclass(frozen=True)
class Rows:
    """Documents, or examples that a step makes of them, and where they come from.

    Attributes:
      columns: under the user's names, or those of the features that a step makes. Nothing else is in there.
      document: int64 `[rows, 3]`, (epoch, shard, row) of the document that a row comes from; -1 if it is not known.
      number: int64 `[rows]`, the number of this document among those that were read.
    """

    columns: dict[str, Any]
    document: np.ndarray
    number: np.ndarray

    def make(self, columns: dict[str, Any], of_rows: Any = slice(None)) -> "Rows":
        """Rows that are made of these: one of each, or those of the rows with the indices `of_rows`."""
        return Rows(columns, self.document[of_rows], self.number[of_rows])

    def place(self, i: int) -> str:
        """The i-th row for a message: its place in the file if that is known, else among those that were read."""
        row = int(self.document[i, 2])
        return f"row {row if row >= 0 else self.number[i]} (the first is 0)"


@dataclasses.dataclass(frozen=True)
class ReaderChunks:
    """The chunks of one reader's pieces, in order.

    Attributes:
      read: takes the numbers of a piece and of a chunk; see `chunks.Cursor.read`.
      pieces: what the reader reads.
      dtypes: NumPy's types by column; `object` for texts, which are bytes.
      shuffle: whether each epoch orders the pieces, and each chunk its documents, differently.
      seed, reader: the order depends on these.
      start: the (epoch, number of the piece, chunk, row) of the first document; None is the beginning.
    """

    read: Callable[[int, int], tuple[pa.Table, np.ndarray, bool]]
    pieces: Sequence[Piece]
    dtypes: Mapping[str, type]
    shuffle: bool
    seed: int
    reader: int
    start: tuple[int, int, int, int] | None = None

    @property
    def first_epoch(self) -> int:
        return self.start[0] if self.start else 0

    def documents(self, num_epochs: int | None) -> Iterator[Rows]:
        """Chunks; without a number of epochs for ever.

        A chunk may be empty, where a split keeps none of its documents.

        Raises:
          ValueError: if the stream is endless and a whole epoch has no document.
        """
        count = 0
        for epoch in itertools.count(self.first_epoch):
            if num_epochs is not None and epoch >= num_epochs:
                return
            found = self.start is not None and epoch == self.first_epoch  # which reads a part of the epoch
            for index in self.order_of_epoch(epoch).tolist():
                for chunk in itertools.count(self.first_chunk(epoch, index)):
                    columns, document, has_rows = self.read_chunk(epoch, index, chunk)
                    if not has_rows:
                        break
                    found = found or len(document) > 0
                    yield Rows(columns, document, np.arange(count, count + len(document)))
                    count += len(document)
            if not found and num_epochs is None:
                raise ValueError(
                    f"Reader {self.reader} gets no document in a whole epoch: the split keeps none of its part of the "
                    "files. Fewer readers (DatasetConfig.num_readers) have larger parts."
                )

    def first_chunk(self, epoch: int, index: int) -> int:
        """The chunk of a piece with which reading begins in an epoch."""
        return self.start[2] if self.start and (epoch, index) == self.start[:2] else 0

    def order_of_epoch(self, epoch: int) -> np.ndarray:
        """The numbers of the pieces as an epoch reads them, from `start` on."""
        order = np.arange(len(self.pieces))
        if self.shuffle:
            order = np.random.default_rng([self.seed, self.reader, epoch]).permutation(order)
        if self.start and epoch == self.start[0]:
            return order[order.tolist().index(self.start[1]) :]
        return order

    def read_chunk(self, epoch: int, index: int, chunk: int) -> tuple[dict[str, np.ndarray], np.ndarray, bool]:
        """The columns of a chunk, its documents as `Rows` has them, and whether the piece has rows there."""
        table, rows, has_rows = self.read(index, chunk)
        order = np.arange(len(rows))
        piece = self.pieces[index]
        if self.shuffle:
            key = [self.seed, epoch, piece.shard, piece.offset, chunk]
            order = np.random.default_rng(key).permutation(order)
        if self.start and (epoch, index, chunk) == self.start[:3] and has_rows:
            order = order[rows[order].tolist().index(self.start[3]) :]
        ids = np.stack([np.full(len(rows), epoch), np.full(len(rows), piece.shard), rows], axis=1)
        columns = {name: _to_numpy(table.column(name))[order] for name in self.dtypes}
        return columns, ids[order].astype(np.int64), has_rows


def dtype_of(field: pa.Field, is_nested: bool) -> type:
    """NumPy's type of a column; one with lists or records is text.

    Raises:
      ValueError: for any type but strings, booleans, integers and floats.
    """
    if _is_text(field.type) or pa.types.is_boolean(field.type) or is_nested:
        return object
    if pa.types.is_integer(field.type):
        return np.int64
    if pa.types.is_floating(field.type):
        return np.float32
    # How `datasets` says that a column has values of several types.
    kind = "values of several types" if "arrow.json" in str(field.type) else f"the type {field.type}"
    raise ValueError(f"Column {field.name!r} has {kind}; only strings, integers and floats can be read.")


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _to_numpy(column: pa.ChunkedArray) -> np.ndarray:
    if _is_text(column.type):
        # A missing text is an empty one.
        binary = pa.binary() if pa.types.is_string(column.type) else pa.large_binary()
        # A cast would import pyarrow.compute.
        values = [value or b"" for chunk in column.chunks for value in chunk.view(binary).to_pylist()]
        return np.array(values, dtype=object)
    if pa.types.is_boolean(column.type):  # As files of text have them.
        return np.array([b"" if value is None else str(value).encode() for value in column.to_pylist()], dtype=object)
    if pa.types.is_nested(column.type):
        # A missing list is an empty text too: "null" could not be told from a text.
        texts = ["" if value is None else json_text.dumps(value, ensure_ascii=False) for value in column.to_pylist()]
        return np.array([text.encode() for text in texts], dtype=object)
    dtype = np.int64 if pa.types.is_integer(column.type) else np.float32
    return column.to_numpy().astype(dtype)
