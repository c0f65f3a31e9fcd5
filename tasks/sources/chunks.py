"""Numbered chunks of numbered shards: who reads which rows, in which order, and reading them.

The chunks of one reader are a pure function of counters: epoch -> order of the reader's pieces -> numbered chunks of a
piece.
"""

import dataclasses
import heapq
import itertools
import lzma
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from limba.files import json_text
from limba.tasks.sources import arrow_tables, splits
from limba.tasks.sources.damaged_files import bad_lines, wrong_contents
from limba.tasks.sources.read_columns import bounded_lines
from limba.tasks.sources.remote_files import http_files

# What the readers of formats raise for files that are damaged or cannot be opened.
_DAMAGED = (ValueError, TypeError, OSError, EOFError, OverflowError, zlib.error, lzma.LZMAError, pa.ArrowException)
# Of the rows that a reader holds together: some compressed kilobytes stand for any number of long texts. A thousand
# books have less.
MOST_BYTES = 2**29
UNREADABLE = (http_files.BrokenFileError, *_DAMAGED)


def broken(shard: arrow_tables.Shard, row: int, error: Exception, columns: Sequence[str]) -> http_files.BrokenFileError:
    """An error that names the shard, for one of `UNREADABLE`; where it can be found, also the line and the remedy.

    `columns` are those that are read.
    """
    blamed = getattr(error, "filename", None)
    if isinstance(error, PermissionError) and blamed and "huggingface" in str(blamed):
        return http_files.BrokenFileError(
            f"The cache of Hugging Face's datasets may not be written by this user ({blamed}). Set HF_HOME to a folder "
            "that may be."
        )
    if isinstance(error, arrow_tables.FormatError | bounded_lines.TooManyBytesError):
        return http_files.BrokenFileError(f"Shard {shard.name} cannot be read from row {row} on: {error}.")
    if wrong := what_is_wrong(shard, columns):
        return http_files.BrokenFileError(f"Shard {shard.name} cannot be read from row {row} on: {wrong}")
    reason = " ".join(str(error).split())
    if not isinstance(error, http_files.BrokenFileError):
        reason = f"{type(error).__name__}: {reason}"
    return http_files.BrokenFileError(f"Shard {shard.name} cannot be read from row {row} on ({reason}).")


def what_is_wrong(shard: arrow_tables.Shard, columns: Sequence[str]) -> str | None:
    """What is wrong with a local file that cannot be read, and the remedy; None where it cannot be found."""
    try:
        builder = arrow_tables.builder_of(shard.path)
    except ValueError:  # Of a format of the user's own.
        builder = None
    if wrong := wrong_contents.find(shard, builder):
        return wrong[0].lower() + wrong[1:]
    bad = bad_lines.find(shard, builder, columns)
    return None if bad is None else f"{bad.what}. {bad.remedy}"


@dataclasses.dataclass(frozen=True, order=True)
class Piece:
    """Rows `offset`, `offset + step`, `offset + 2 * step` … of a shard: a reader's part of a file.

    A piece that `rotates` has one of each `step` rows too, and of the n-th of them the row `(offset - n) % step`. Where
    every second line of a text is blank, other pieces would have nothing but blank lines.
    """

    shard: int
    offset: int
    step: int
    rotates: bool = False

    def rows(self, count: int, first_group: int = 0) -> np.ndarray:
        """The rows of the piece among the first `count` rows from a group of `step` rows on, int64."""
        groups = np.arange(-(-count // self.step))
        offsets = (self.offset - groups - first_group) % self.step if self.rotates else self.offset
        rows = groups * self.step + offsets
        return rows[rows < count]

    def has(self, row: int) -> bool:
        """Whether a row of the shard belongs to the piece."""
        group, place = divmod(row, self.step)
        return place == ((self.offset - group) % self.step if self.rotates else self.offset)


def split_shards(sizes: Sequence[float], num_readers: int) -> list[list[Piece]]:
    """Shares shards of the given sizes between readers: disjoint pieces that cover everything, equally much for each.

    Shards stay whole where that balances. Otherwise every shard is split by rows, into the fewest stripes (a divisor of
    `num_readers`) for which no reader has 5 % more than its share: with unequal shares the readers' epochs would differ
    in length, and the documents of the short ones would be seen more often.
    """
    share = sum(sizes) / num_readers
    for step in (d for d in range(1, num_readers + 1) if num_readers % d == 0):
        # Offset 0 has a row more than the last offset has, in a shard whose rows do not divide: it counts a bit more.
        stripes = sorted(
            (-size / step * (1 - 1e-6 * offset), shard, offset)
            for shard, size in enumerate(sizes)
            for offset in range(step)
        )
        loads = [(0.0, reader) for reader in range(num_readers)]
        pieces: list[list[Piece]] = [[] for _ in range(num_readers)]
        for negative_size, shard, offset in stripes:
            load, reader = heapq.heappop(loads)
            pieces[reader].append(Piece(shard, offset, step))
            heapq.heappush(loads, (load - negative_size, reader))
        if max(loads)[0] <= 1.05 * share:
            break
    return [sorted(of_reader) for of_reader in pieces]


def deal_rows(rows: Sequence[int], num_readers: int) -> list[list[Piece]]:
    """Shares shards of which the rows are known: the n-th document of all goes to reader `n % num_readers`.

    No reader has two documents more than another, however small and many the shards are.
    """
    starts = np.cumsum([0, *rows])
    return [
        [
            Piece(shard, offset, num_readers)
            for shard, count in enumerate(rows)
            if (offset := int(reader - starts[shard]) % num_readers) < count
        ]
        for reader in range(num_readers)
    ]


class Cursor:
    """Reads numbered chunks of pieces, and keeps the last one's file open, so that the next chunk needs no seeking.

    Args:
      rows: which rows of which shards the split has; a piece's `shard` is an index into it.
      pieces: what the cursor reads.
      schema: columns and types, to which every shard is brought.
      chunk_documents: documents of a chunk.
      keeps: which documents the split has, by the first column, which has the text; None keeps all.
      skip: is told of a shard that stays unreadable, whose rest is then left out; None stops the reading there.
    """

    def __init__(
        self,
        tables: arrow_tables.Tables,
        rows: Sequence[splits.ShardRows],
        pieces: Sequence[Piece],
        schema: pa.Schema,
        chunk_documents: int,
        keeps: Callable[[pa.ChunkedArray], np.ndarray] | None = None,
        skip: Callable[[http_files.BrokenFileError], None] | None = None,
    ):
        self._tables = tables
        self._rows = rows
        self._pieces = pieces
        self._schema = schema
        self._chunk_documents = chunk_documents
        self._keeps = keeps
        self._skip = skip
        self._nothing = (pa.Table.from_batches([], schema), np.zeros(0, np.int64), False)
        # TensorFlow asks for the chunk after an error, and would wait for all the retries again each time.
        self._broken: http_files.BrokenFileError | None = None
        self._lock = threading.Lock()
        # The open piece; the table that was read last, if it has rows of the next chunk, and those that follow; the
        # shard's row where the first of these begins.
        self._open: int | None = None
        self._start = 0
        self._waiting: pa.Table | None = None
        self._following: Iterator[pa.Table] = iter(())

    def find(self, shard: int, row: int) -> tuple[int, int]:
        """The piece that has a row of a shard, and its chunk."""
        row -= self._rows[shard].start
        for index, piece in enumerate(self._pieces):
            if piece.shard == shard and piece.has(row):
                return index, row // (self._chunk_documents * piece.step)
        raise ValueError(f"no piece of {self._pieces} has row {row} of shard {shard}")

    def chunks(self, index: int) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """The documents of a piece and their rows, chunk by chunk; no chunk is empty."""
        for chunk in itertools.count():
            table, rows, has_rows = self.read(index, chunk)
            if len(rows):
                yield table, rows
            if not has_rows:
                return

    def read(self, index: int, chunk: int) -> tuple[pa.Table, np.ndarray, bool]:
        """Documents of a chunk, their rows in the shard, and whether the piece has rows there; a split may keep none.

        Raises:
          BrokenFileError: if the shard cannot be read and is not to be skipped; it names the shard.
        """
        if self._broken is not None:
            raise self._broken
        try:
            return self._read(index, chunk)
        except http_files.BrokenFileError as error:
            if self._skip is None:
                self._broken = error
                raise
            self._skip(error)
            return self._nothing

    def _read(self, index: int, chunk: int) -> tuple[pa.Table, np.ndarray, bool]:
        piece = self._pieces[index]
        where = self._rows[piece.shard]
        rows_per_chunk = self._chunk_documents * piece.step
        start = where.start + chunk * rows_per_chunk
        stop = start + rows_per_chunk if where.stop is None else min(start + rows_per_chunk, where.stop)
        if start >= stop:
            return self._nothing
        rows = piece.rows(stop - start, chunk * self._chunk_documents)
        with self._lock:
            try:
                table = self._rows_of_shard(index, where.shard, start, rows, stop)
            except UNREADABLE as error:
                raise broken(self._tables.shards[where.shard], start, error, self._schema.names) from error
        rows = rows[: table.num_rows]
        has_rows = len(rows) > 0
        if self._keeps is not None:
            kept = np.flatnonzero(self._keeps(table.column(0)))
            table, rows = table.take(_indices(kept)), rows[kept]
        return table, start + rows, has_rows

    def _rows_of_shard(self, index: int, shard: int, start: int, rows: np.ndarray, stop: int) -> pa.Table:
        """Those of the rows `start + rows` that a shard has, which all lie before `stop`; no others are held."""
        if self._open != index or start < self._start:
            self._start, self._following = self._tables.open(shard, self._chunk_documents, start)
            self._waiting = None
        # Stays unset if reading fails: a broken stream would otherwise pass for one that has ended.
        self._open = None
        found, size = [], 0
        while self._start < stop:
            table = self._next_table() if self._waiting is None else self._waiting
            if table is None:
                break
            end = self._start + table.num_rows
            first, last = np.searchsorted(rows, (self._start - start, end - start))
            part = _take(table, rows[first:last] - (self._start - start))
            if part.num_rows:
                found.append(part)
            if (size := size + part.nbytes) > MOST_BYTES:
                raise bounded_lines.TooManyBytesError(
                    f"rows {start} to {min(end, stop) - 1} have more than {MOST_BYTES:,} bytes, and rows {start} to "
                    f"{stop - 1} are read together: divide long texts, or give the source a smaller chunk_documents"
                )
            self._waiting = table if end > stop else None
            if end > stop:
                break
            self._start = end
        self._open = index
        return pa.concat_tables(found) if found else pa.Table.from_batches([], self._schema)

    def _next_table(self) -> pa.Table | None:
        if (table := next(self._following, None)) is None:
            return None
        table = table.select(self._schema.names)
        table.validate(full=True)  # Texts of JSON and Parquet come without a look at their UTF-8.
        return table if table.schema == self._schema else table.cast(self._schema)


def _take(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """These rows, in ascending order; where most of a table are wanted a slice, which keeps the whole table."""
    if 2 * len(rows) > table.num_rows and rows[-1] - rows[0] + 1 == len(rows):
        return table.slice(rows[0], len(rows))
    return table.take(_indices(rows))


def _indices(rows: np.ndarray) -> pa.Array:
    """Row numbers for `take`, which would import pandas to look at an array of NumPy's."""
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows.astype(np.int64))])


# ------------------------------------------------ the order of a reader -----------------------------------------------


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
      read: takes the numbers of a piece and of a chunk; see `Cursor.read`.
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
    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
        return _number_type(field.type)
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
    # As files of text have them; NumPy's integers have no missing value.
    if pa.types.is_boolean(column.type) or (pa.types.is_integer(column.type) and column.null_count):
        return np.array([b"" if value is None else str(value).encode() for value in column.to_pylist()], dtype=object)
    if pa.types.is_nested(column.type):
        # A missing list is an empty text too: "null" could not be told from a text.
        texts = ["" if value is None else json_text.dumps(value, ensure_ascii=False) for value in column.to_pylist()]
        return np.array([text.encode() for text in texts], dtype=object)
    return column.to_numpy().astype(_number_type(column.type))


def _number_type(kind: pa.DataType) -> type:
    """As what numbers of a column are read; doubles keep their digits."""
    if pa.types.is_integer(kind):
        return np.int64
    return np.float64 if pa.types.is_float64(kind) else np.float32
