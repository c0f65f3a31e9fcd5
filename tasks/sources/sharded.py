"""A data source of shards, whose position can be saved exactly.

What a reader reads is a pure function of counters (`chunks`). The open files are a cache, which a restored
reader opens again. SeqIO's tasks may have such a source too: it has the names of `seqio.DataSource`.
"""

import abc
import dataclasses
import itertools
import logging
import pathlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from limba.addons import table as addons
from limba.files import os_errors
from limba.tasks.sources import arrow_tables, chunks, class_names
from limba.tasks.sources import splits as splits_lib
from limba.tasks.sources.damaged_files import bad_lines, missing_columns
from limba.tasks.sources.remote_files import http_files

logger = logging.getLogger(__name__)

# Of each reader, to see whether its part has a text.
_ROWS_OF_A_LOOK = 16
# To see whether documents have blank lines between them: most texts have one among the first hundred lines.
_LINES_OF_A_LOOK = 20_000
# Bytes of files that may be read when a split is opened, to count their documents.
_SMALL_CORPUS = 1 << 20
# Shards that are read in turn. Files and connections are limited.
_OPEN_SHARDS = 32

Splits = Mapping[str, str | splits_lib.Part]


class NoDocumentError(ValueError):
    """A reader has no document, and others may have some."""


class ShardedSource(abc.ABC):
    """Documents of shards, in numbered chunks.

    Examples are `{column: value, ...}`, under the names of the user's columns and no others.

    Args:
      own_splits: the splits that the source has by itself.
      columns: the columns to read: strings, integers or floats. The first has the text.
      splits: the splits that tasks see, as parts of those: `{"train": "train[1000:]", "validation": "train[:1000]"}`,
        or `splits.held_out(0.01)`. None leaves them as they are.
      chunk_documents: documents that are read at a time.
      on_broken_shard: "stop", or "skip" to leave out the rest of a shard that stays unreadable, for this epoch. The
        log counts the skips. They depend on the network: such a run cannot be repeated, and after a resume near a
        skipped shard, documents of one shuffle buffer may come twice or not at all.
      hint: a sentence for the error about missing files; it says how to make them.
      nested_columns: columns with lists or records, which are read as well, as JSON text.
    """

    def __init__(
        self,
        own_splits: Sequence[str],
        columns: Sequence[str],
        splits: Splits | None,
        chunk_documents: int,
        on_broken_shard: str,
        hint: str = "",
        nested_columns: Sequence[str] = (),
    ):
        if on_broken_shard not in ("stop", "skip"):
            raise ValueError(f"on_broken_shard is {on_broken_shard!r}; it is 'stop' or 'skip'.")
        self._parts = {
            name: part if isinstance(part, splits_lib.Part) else splits_lib.Part.parse(part)
            for name, part in (splits or {}).items()
        }
        self._splits = tuple(self._parts or own_splits)
        self._columns = (*columns, *nested_columns)
        self._nested_columns = tuple(nested_columns)
        self._chunk_documents = chunk_documents
        self._on_broken_shard = on_broken_shard
        self._hint = hint
        self._num_skipped = 0
        self._schemas: dict[str, pa.Schema] = {}
        self._rows: dict[str, tuple[arrow_tables.Tables, list[splits_lib.ShardRows]]] = {}
        self._counts: dict[str, tuple[arrow_tables.Tables, list[int]]] = {}
        self._blank_lines: dict[str, tuple[arrow_tables.Tables, bool]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what was opened, which another process opens again."""
        return self.__dict__ | {name: {} for name in self._OPENED if name in self.__dict__}

    # Caches of open files and what was read of them.
    _OPENED = ("_opened", "_remote", "_rows", "_counts", "_blank_lines", "_schemas")

    @property
    def splits(self) -> Sequence[str]:
        return self._splits

    @property
    def needs_network(self) -> bool:
        """Whether a split may not be on this machine; nothing is opened to find it out."""
        return False

    @abc.abstractmethod
    def _tables(self, split: str) -> arrow_tables.Tables:
        """The shards of a split of the source's own."""

    def _part(self, split: str) -> splits_lib.Part:
        if split not in self.splits:
            raise ValueError(f"There is no split {split!r}; this source has {', '.join(map(repr, self.splits))}.")
        return self._parts.get(split, splits_lib.Part(split))

    def _open(self, split: str) -> tuple[arrow_tables.Tables, list[splits_lib.ShardRows]]:
        part = self._part(split)
        tables = self._tables(part.split)
        if split not in self._rows or self._rows[split][0] is not tables:
            self._rows[split] = tables, splits_lib.rows_of(part, tables)
        return self._rows[split]

    def list_shards(self, split: str) -> Sequence[str]:
        """The files of a split, in order.

        Raises:
          ValueError: if there is no such split.
          FileNotFoundError: if a file is missing or a pattern matches nothing.
        """
        tables, rows = self._open(split)
        return [tables.shards[row.shard].name for row in rows]

    def shared_files(self, split: str, other: str) -> list[str]:
        """The files that two splits both read whole."""
        if not (self._part(split).is_whole and self._part(other).is_whole):
            return []
        return sorted({*self.list_shards(split)} & {*self.list_shards(other)})

    def fingerprint(self, split: str) -> dict[str, Any]:
        """What the order of documents depends on. Neither directories nor credentials count: a corpus may move."""
        (tables, rows), part = self._open(split), self._part(split)
        shards = [tables.shards[row.shard] for row in rows]
        return {
            "files": {_file_name(shard): shard.size for shard in shards},
            "columns": list(self._columns),
            "chunk_documents": self._chunk_documents,
            **({"blank_lines": "dealt to all readers"} if self._has_blank_lines(split) else {}),
            **({} if part.is_whole else {"part": str(part)}),
        }

    def keep_revision(self, fingerprint: Mapping[str, Any]) -> None:  # noqa: B027, most sources have none
        """Returns to the revision that a saved position belongs to, if the source has revisions."""

    def check(self, split: str) -> None:
        """Opens the split and looks at its first document.

        Raises:
          FileNotFoundError: if files are missing.
          ValueError: if the split is unknown or empty, or a column is missing or of a type that cannot be read.
        """
        if split in self._schemas:
            return
        found = self._first_rows(split)
        part = self._part(split)
        where = f"split {split!r}{'' if part.is_whole else f' ({part})'}, files {_shorten(self.list_shards(split))}"
        if found is None and not part.is_whole:
            total = self._count_whole(part.split)
            raise ValueError(
                f"Split {split!r} has no document: it is {part}, and {part.split!r} has {total}, in files "
                f"{_shorten([shard.name for shard in self._tables(part.split).shards])}. Give it more documents, the "
                "split a larger part, or files of its own."
            )
        if found is None:
            raise ValueError(f"The corpus is empty: no document in {where}. {self._hint}".rstrip())
        fields = []
        for column in self._columns:
            if column not in found.schema.names:
                tables = self._open(split)[0]
                file = tables.shards[0].name
                raise missing_columns.error(column, found.names, self._columns, tables.builder, where, file)
            fields.append(self._with_type(split, found.schema.field(column)))
            try:
                chunks.dtype_of(fields[-1], column in self._nested_columns)
            except ValueError as error:
                tables, rows = self._open(split)
                shards = (tables.shards[row.shard] for row in rows if tables.builder == "json")
                lines = ((shard.name, bad_lines.find(shard, "json", [column])) for shard in shards)
                place = next((f": {line.what} in {name}" for name, line in lines if line), "")
                raise ValueError(f"{error} It is in {where}{place}.") from error
        schema = pa.schema([pa.field(field.name, field.type) for field in fields])
        self._check_every_file(split, schema)
        self._schemas[split] = schema

    def _with_type(self, split: str, field: pa.Field) -> pa.Field:
        """A field; where the first file has only nulls, with the type of another file, or as empty texts."""
        if not pa.types.is_null(field.type):
            return field
        tables, rows = self._open(split)
        others = (tables.beginning(row.shard) for row in rows if not tables.shards[row.shard].is_remote)
        kinds = (x.schema.field(field.name).type for x in others if x is not None and field.name in x.schema.names)
        return pa.field(field.name, next((kind for kind in kinds if not pa.types.is_null(kind)), pa.string()))

    def column_names(self, split: str) -> list[str]:
        """Of all columns of the first file of a split, also of those that are not read. No row is counted.

        Raises:
          BrokenFileError: if it cannot be read.
        """
        tables = self._tables(self._part(split).split)
        try:
            return tables.names(0)
        except chunks.UNREADABLE as error:
            raise chunks.broken(tables.shards[0], 0, error, self._columns) from error

    def class_names(self, split: str, column: str) -> tuple[str, ...]:
        """The texts that the numbers of a column stand for, a ClassLabel or lists of it; () where nothing says so.

        Of files that are elsewhere the first is looked at, of those here all.

        Raises:
          ValueError: if files give a number different names, or one is damaged.
        """
        tables = self._tables(self._part(split).split)
        some = [shard for shard, file in enumerate(tables.shards) if shard == 0 or not file.is_remote]
        found = {tables.shards[shard].name: tables.class_names(shard).get(column, ()) for shard in some}
        names = {file: of_file for file, of_file in found.items() if of_file}
        class_names.check_same(column, names)
        return next(iter(names.values()), ())

    def _first_rows(self, split: str) -> arrow_tables.Beginning | None:
        tables, rows = self._open(split)
        for row in rows:
            try:
                found = tables.beginning(row.shard) if tables.shards[row.shard].size else None
            except chunks.UNREADABLE as error:
                broken = chunks.broken(tables.shards[row.shard], 0, error, self._columns)
                if self._on_broken_shard == "stop" or row is rows[-1]:
                    raise broken from error
                self._log_skipped(broken)
                continue
            if found is not None:
                return found
        return None

    def _check_every_file(self, split: str, schema: pa.Schema) -> None:
        """Reads the beginning of each local file, which finds a wrong format before the run and not in its middle."""
        tables, rows = self._open(split)
        for shard in (row.shard for row in rows if not tables.shards[row.shard].is_remote):
            try:
                # Whole blocks of ten thousand files are gigabytes. What a glance finds wrong is looked at again.
                try:
                    self._check_beginning(tables.beginning(shard, is_glance=True), schema)
                except (*chunks.UNREADABLE, KeyError):
                    self._check_beginning(tables.beginning(shard), schema)
            except (*chunks.UNREADABLE, KeyError) as error:
                if isinstance(error, arrow_tables.FormatError):
                    raise chunks.broken(tables.shards[shard], 0, error, self._columns) from error
                if wrong := chunks.what_is_wrong(tables.shards[shard], self._columns):
                    raise ValueError(f"{tables.shards[shard].name} cannot be read: {wrong}") from error
                reason = os_errors.describe(error) or str(error).strip().splitlines()[0]
                raise ValueError(
                    f"{tables.shards[shard].name} cannot be read with the columns {list(self._columns)} like the other "
                    f"files of split {split!r} ({type(error).__name__}: {reason}). Repair the file or leave it out."
                ) from error

    def _check_beginning(self, found: arrow_tables.Beginning | None, schema: pa.Schema) -> None:
        """Raises KeyError for a column that is not there, pyarrow's error for one of another type."""
        if found is not None:
            there = pa.schema([found.schema.field(name) for name in self._columns])
            if there != schema:  # casting imports pyarrow.compute
                pa.Table.from_batches([], there).cast(schema)

    def documents(self, split: str, batch_size: int = 1024) -> Iterator[list[dict[str, Any]]]:
        """One pass over a split without TensorFlow: lists of documents, taken from the shards in turn."""
        self.check(split)

        def read_shard(shard: int) -> Iterator[list[dict[str, Any]]]:
            cursor = self._cursor(split, [chunks.Piece(shard, 0, 1)], batch_size)
            tables, rows = self._open(split)
            file = tables.shards[rows[shard].shard]
            return (_documents(file, table, self._columns) for table, _ in cursor.chunks(0))

        waiting = map(read_shard, range(len(self._open(split)[1])))
        open_shards = list(itertools.islice(waiting, _OPEN_SHARDS))
        while open_shards:
            for shard in list(open_shards):
                if (documents := next(shard, None)) is not None:
                    yield documents
                    continue
                open_shards.remove(shard)
                open_shards.extend(itertools.islice(waiting, 1))

    def numbered_documents(self, split: str, batch_size: int = 1024) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """The documents of a split in the order of its files, each with its file and its row in there, from 0."""
        for file, numbers, table in self.numbered_tables(split, batch_size):
            for number, document in zip(numbers.tolist(), table.to_pylist(), strict=True):
                yield file, number, document

    def numbered_tables(self, split: str, batch_size: int = 1024) -> Iterator[tuple[str, np.ndarray, pa.Table]]:
        """As `numbered_documents`, some at a time: their file, their rows in there and a table of them."""
        self.check(split)
        tables, rows = self._open(split)
        for shard, where in enumerate(rows):
            cursor = self._cursor(split, [chunks.Piece(shard, 0, 1)], batch_size)
            for table, numbers in cursor.chunks(0):
                yield tables.shards[where.shard].name, numbers, table

    def count_documents(self, split: str, most: int | None = None) -> int:
        """The documents of a split, or `most` if it has more."""
        return sum(1 for _ in itertools.islice(self.numbered_documents(split, most or 1024), most))

    def _count_whole(self, split: str) -> int:
        """The documents of a split of the source's own, whatever part of them tasks see."""
        tables = self._tables(split)
        return sum(self._count(tables, splits_lib.ShardRows(shard)) for shard in range(len(tables.shards)))

    def has_documents(self, split: str, count: int) -> bool:
        """Whether a split has at least so many documents; a large remote one is not read, and is taken to have them."""
        if self.is_remote(split) and not self.is_small(split):
            return True
        if not self._has_blank_lines(split):
            return self.count_documents(split, count) == count
        # Blank lines are nobody's documents; they are dealt with the others, evenly but not exactly so.
        enough = 4 * count if count > 1 else 1
        texts = (document[self._columns[0]] or "" for _, _, document in self.numbered_documents(split))
        return sum(1 for _ in itertools.islice(filter(str.strip, texts), enough)) == enough

    def num_bytes(self, split: str) -> float:
        """The size of a split's files, or of its share of them."""
        return sum(self._sizes(split))

    def is_small(self, split: str) -> bool:
        """Whether a split may be read before a run."""
        return self.num_bytes(split) <= _SMALL_CORPUS

    def count_texts(self, split: str, num_readers: int) -> list[tuple[int, int]]:
        """How many documents of each reader have a text, which is that of the first column, and how many it has."""
        return [self._count_texts_of(split, reader, num_readers) for reader in range(num_readers)]

    def _count_texts_of(self, split: str, reader: int, num_readers: int) -> tuple[int, int]:
        try:
            chunks_of_reader = self.chunks_of(split, False, 0, reader, num_readers).documents(1)
        except NoDocumentError:
            return 0, 0
        texts = [text for chunk in chunks_of_reader for text in chunk.columns[self._columns[0]]]
        return sum(1 for text in texts if not isinstance(text, bytes) or text.strip()), len(texts)

    def has_blank_part(self, split: str, num_readers: int) -> bool:
        """Whether a reader that shares a file's rows with others would have blank ones alone, by the first rows of it.

        One look at one file, so also at a corpus that is far away. None where no reader shares a file.
        """
        pieces = (piece for of_reader in self._share(split, num_readers, rotates=False) for piece in of_reader)
        shared = next((piece for piece in pieces if piece.step > 1 and not piece.rotates), None)
        if shared is None:
            return False
        cursor = self._cursor(split, [chunks.Piece(shared.shard, 0, 1)], _ROWS_OF_A_LOOK * shared.step)
        table, rows, _ = cursor.read(0, 0)
        is_text = np.array(
            [not isinstance(x, str | None) or bool((x or "").strip()) for x in table.column(0).to_pylist()]
        )
        place = rows % shared.step
        return any((place == x).any() and not is_text[place == x].any() for x in range(shared.step))

    def is_remote(self, split: str) -> bool:
        """Whether reading a split needs the network."""
        return any(shard.is_remote for shard in self._open(split)[0].shards)

    def chunks_of(
        self,
        split: str,
        shuffle: bool,
        seed: int | None,
        reader: int = 0,
        num_readers: int = 1,
        start: Sequence[int] | None = None,
        rotates: bool = False,
        chunk_documents: int | None = None,
    ) -> chunks.ReaderChunks:
        """What one reader reads.

        Args:
          split, shuffle, seed: the order's; a seed of None draws one.
          reader, num_readers: which reader of how many.
          start: the (epoch, shard, row) of the document to begin with; None is the first.
          rotates: whether the rows of all readers do; see `chunks.Piece`.
          chunk_documents: of another number than the source's.

        Raises:
          NoDocumentError: if the reader has none, as where there are fewer documents than readers.
          FileNotFoundError, ValueError: see `check`; also if there is no document at all.
        """
        self.check(split)
        seed = secrets.randbits(31) if seed is None else int(seed)
        pieces = self._share(split, num_readers, rotates)[reader]
        cursor = self._cursor(split, pieces, chunk_documents or self._chunk_documents)
        if not any(True for index in range(len(pieces)) for _ in cursor.chunks(index)):
            where = f"{split!r}, files {_shorten(self.list_shards(split))}"
            if num_readers == 1:
                part = self._part(split)
                raise ValueError(
                    f"There is no document in split {where}, which is {part}; {part.split!r} has "
                    f"{self._count_whole(part.split)}. Give it more documents, or the split a larger part."
                )
            raise NoDocumentError(
                f"Reader {reader} of {num_readers} has no document in split {where}, which has "
                f"{self.count_documents(split)}; set DatasetConfig.num_readers to at most the number of documents."
            )
        dtypes = {
            field.name: chunks.dtype_of(field, field.name in self._nested_columns) for field in self._schemas[split]
        }
        first = None
        if start:
            epoch, shard, row = map(int, start)
            first = epoch, *cursor.find(shard, row), row
        return chunks.ReaderChunks(cursor.read, pieces, dtypes, shuffle, seed, reader, first)

    def _share(self, split: str, num_readers: int, rotates: bool) -> list[list[chunks.Piece]]:
        """Each reader's pieces, none of which has all the blank lines of a text."""
        pieces = self._share_rows(split, num_readers)
        if num_readers > 1 and (rotates or self._has_blank_lines(split)):
            return [[dataclasses.replace(piece, rotates=True) for piece in of_reader] for of_reader in pieces]
        return pieces

    def _has_blank_lines(self, split: str) -> bool:
        tables, rows = self._open(split)
        if split not in self._blank_lines or self._blank_lines[split][0] is not tables:
            self._blank_lines[split] = tables, _has_blank_line(tables, rows)
        return self._blank_lines[split][1]

    def _share_rows(self, split: str, num_readers: int) -> list[list[chunks.Piece]]:
        """As `_share`. In a small corpus, where a reader might get nothing, documents are dealt one by one."""
        tables, rows = self._open(split)
        is_counted = self._on_broken_shard == "stop" or not any(shard.is_remote for shard in tables.shards)
        if num_readers == 1 or sum(self._sizes(split)) > _SMALL_CORPUS or not is_counted:
            return chunks.split_shards(self._sizes(split), num_readers)
        if split not in self._counts or self._counts[split][0] is not tables:
            self._counts[split] = tables, [self._count(tables, row) for row in rows]
        return chunks.deal_rows(self._counts[split][1], num_readers)

    def _count(self, tables: arrow_tables.Tables, row: splits_lib.ShardRows) -> int:
        try:
            return max(0, tables.count_rows(row.shard, row.stop) - row.start)
        except chunks.UNREADABLE as error:
            raise chunks.broken(tables.shards[row.shard], row.start, error, self._columns) from error

    def _sizes(self, split: str) -> list[float]:
        tables, rows = self._open(split)
        return [tables.shards[row.shard].size * tables.share(row.shard, row.start, row.stop) for row in rows]

    def _cursor(self, split: str, pieces: Sequence[chunks.Piece], chunk_documents: int) -> chunks.Cursor:
        tables, rows = self._open(split)
        part = self._part(split)
        keeps = None if part.share == splits_lib.EVERYTHING else part.keeps
        skip = self._log_skipped if self._on_broken_shard == "skip" else None
        return chunks.Cursor(tables, rows, pieces, self._schemas[split], chunk_documents, keeps, skip)

    def _log_skipped(self, error: http_files.BrokenFileError) -> None:
        self._num_skipped += 1
        logger.warning("Skipped the rest of a shard, number %d in this process: %s.", self._num_skipped, error)

    # ------------------------------------------ names of `seqio.DataSource` -------------------------------------------

    supports_arbitrary_sharding = True
    caching_permitted = True
    performs_internal_shuffling = True

    def num_input_examples(self, split: str) -> int | None:
        """Not known: the documents are not counted."""
        del split
        return None

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: Any = None,
        *,
        num_epochs: int | None = 1,
        **unused_kwargs: Any,
    ) -> Any:
        """The documents of one reader as a `tf.data.Dataset`; without a number of epochs for ever."""
        del unused_kwargs
        reader, num_readers = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        chunks_of_reader = self.chunks_of(split, shuffle, seed, reader, num_readers)
        return addons.part("seqio", "A tf.data.Dataset").documents(chunks_of_reader, num_epochs)


def _file_name(shard: arrow_tables.Shard) -> str:
    """Without its folders; of a URL the query belongs to it, in which a slash separates nothing."""
    path, mark, query = shard.name.partition("?") if shard.is_remote else (shard.name, "", "")
    return pathlib.PurePath(path).name + mark + query


def _documents(shard: arrow_tables.Shard, table: pa.Table, columns: Sequence[str]) -> list[dict[str, Any]]:
    try:
        return table.to_pylist()
    except UnicodeDecodeError as error:  # Arrow does not look at the bytes of texts in JSON.
        raise chunks.broken(shard, 0, error, columns) from error


def _shorten(files: Sequence[str]) -> str:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0]!r}{more}" if files else "none"


def _has_blank_line(tables: arrow_tables.Tables, rows: Sequence[splits_lib.ShardRows]) -> bool:
    """Whether one of the first lines of a split is blank; of files that are far away, of the first lines of the first.

    Raises:
      BrokenFileError: if they cannot be read.
    """
    if tables.builder != "text":
        return False
    looked_at = 0
    for row in rows:
        try:
            found = tables.open(row.shard, 1024, row.start)[1]
            for table in itertools.islice(found, 1) if tables.shards[row.shard].is_remote else found:
                if not all(text and text.strip() for text in table.column("text").to_pylist()):
                    return True
                looked_at += table.num_rows
                if looked_at >= _LINES_OF_A_LOOK:
                    return False
        except chunks.UNREADABLE as error:
            raise chunks.broken(tables.shards[row.shard], row.start, error, ["text"]) from error
        if tables.shards[row.shard].is_remote:
            return False
    return False
