"""A SeqIO data source of shards, whose position can be saved exactly.

It is a pure function of counters: epoch -> order of the reader's pieces -> numbered chunks of a piece.
`tf.data` saves such a pipeline to the last element, shuffle buffers included, when external state is ignored; it cannot
save a generator. The files that are open meanwhile are a cache, and a restored iterator opens them again.
"""

import abc
import difflib
import itertools
import json
import logging
import pathlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import seqio
import tensorflow as tf

from tasks import chunks, remote_files
from tasks import shards as shards_lib
from tasks import splits as splits_lib

logger = logging.getLogger(__name__)

# Bytes of files that may be read when a split is opened, to count their documents.
_SMALL_CORPUS = 1 << 20
# More counters than any run uses up.
_FOREVER = 2**62
# Shards that are read in turn. Files and connections are limited.
_OPEN_SHARDS = 32

Splits = Mapping[str, str | splits_lib.Part]


class ShardedSource(seqio.DataSource):
    """Documents of shards, in numbered chunks.

    Examples are `{column: value, ..., "document": int64[3]}`; `document` says (epoch, shard, row), so that a position
    in the stream can be read by people.

    Args:
      own_splits: the splits that the source has by itself.
      columns: the columns to read: strings, integers or floats. The first has the text.
      splits: the splits that tasks see, as parts of those: `{"train": "train[1000:]", "validation": "train[:1000]"}`,
        or `splits.held_out(0.01)`. None leaves them as they are.
      chunk_documents: documents that are read at a time.
      on_broken_shard: "stop", or "skip" to go on without the rest of a shard, for this epoch, that stays unreadable.
        Each is counted in the log. What is skipped depends on the weather: such a run cannot be repeated, and where it
        is resumed beside a skipped shard, documents of one shuffle buffer may come twice or not at all.
      hint: a sentence added to the error for missing files: what makes them.
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
        super().__init__(splits=self._parts or own_splits)
        self._columns = (*columns, *nested_columns)
        self._nested_columns = tuple(nested_columns)
        self._chunk_documents = chunk_documents
        self._on_broken_shard = on_broken_shard
        self._hint = hint
        self._num_skipped = 0
        self._schemas: dict[str, pa.Schema] = {}
        self._rows: dict[str, tuple[shards_lib.Tables, list[splits_lib.ShardRows]]] = {}
        self._counts: dict[str, tuple[shards_lib.Tables, list[int]]] = {}

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return True

    @abc.abstractmethod
    def _tables(self, split: str) -> shards_lib.Tables:
        """The shards of a split of the source's own."""

    def _part(self, split: str) -> splits_lib.Part:
        if split not in self.splits:
            raise ValueError(f"There is no split {split!r}; this source has {', '.join(map(repr, self.splits))}.")
        return self._parts.get(split, splits_lib.Part(split))

    def _open(self, split: str) -> tuple[shards_lib.Tables, list[splits_lib.ShardRows]]:
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

    def fingerprint(self, split: str) -> dict[str, Any]:
        """What the order of documents depends on. Directories do not count, so a corpus may move."""
        tables, rows = self._open(split)
        files = {pathlib.PurePath(shard.name).name: shard.size for shard in (tables.shards[row.shard] for row in rows)}
        part = self._part(split)
        return {
            "files": files,
            "columns": list(self._columns),
            "chunk_documents": self._chunk_documents,
            **({} if part.is_whole else {"part": str(part)}),
        }

    def keep_revision(self, fingerprint: Mapping[str, Any]) -> None:
        """Goes on with the revision that a saved position belongs to, if the source has revisions."""

    def check(self, split: str) -> None:
        """Opens the split and looks at its first document.

        Raises:
          FileNotFoundError: if files are missing.
          ValueError: if the split is unknown or empty, or a column is missing or of a type that cannot be read.
        """
        if split in self._schemas:
            return
        found = self._first_schema(split)
        part = self._part(split)
        where = f"split {split!r}{'' if part.is_whole else f' ({part})'}, files {_shorten(self.list_shards(split))}"
        if found is None:
            raise ValueError(f"The corpus is empty: no document in {where}. {self._hint}".rstrip())
        for column in self._columns:
            if column not in found.names:
                nearest = difflib.get_close_matches(column, found.names, n=1, cutoff=0.0)[0]
                other = next((x for x in (";", "\t", "|") if len(found.names) == 1 and x in nearest), None)
                if other is not None:
                    raise ValueError(
                        f"There is no column {column!r} in {where}: its header {nearest!r} is separated by {other!r}. "
                        "Save it with commas, with tabs as .tsv, or give sources.HuggingFaceSource(…, load_args="
                        f"{{'delimiter': {other!r}}}) in place of the files."
                    )
                raise ValueError(
                    f"There is no column {column!r} in {where}. The columns are "
                    f"{', '.join(map(repr, found.names))}; did you mean {nearest!r}?"
                )
            try:
                self._tf_dtype(found.field(column))
            except ValueError as error:
                raise ValueError(f"{error} It is in {where}.") from error
        schema = pa.schema([pa.field(column, found.field(column).type) for column in self._columns])
        self._check_every_file(split, schema)
        self._schemas[split] = schema

    def _first_schema(self, split: str) -> pa.Schema | None:
        tables, rows = self._open(split)
        for row in rows:
            try:
                schema = tables.schema(row.shard) if tables.shards[row.shard].size else None
            except chunks.UNREADABLE as error:
                broken = chunks.broken(tables.shards[row.shard], 0, error)
                if self._on_broken_shard == "stop" or row is rows[-1]:
                    raise broken from error
                self._say_skipped(broken)
                continue
            if schema is not None:
                return schema
        return None

    def _check_every_file(self, split: str, schema: pa.Schema) -> None:
        """Looks at each local file's beginning, which finds another format now and not in the middle of a run."""
        tables, rows = self._open(split)
        for shard in (row.shard for row in rows if not tables.shards[row.shard].is_remote):
            try:
                found = tables.schema(shard)
                if found is not None:
                    found.empty_table().select(self._columns).cast(schema)
            except (*chunks.UNREADABLE, KeyError) as error:
                reason = str(error).strip().splitlines()[0]
                raise ValueError(
                    f"{tables.shards[shard].name} cannot be read with the columns {list(self._columns)} like the other "
                    f"files of split {split!r} ({type(error).__name__}: {reason}). Mend it or leave it out."
                ) from error

    def documents(self, split: str, batch_size: int = 1024) -> Iterator[list[dict[str, Any]]]:
        """One pass over a split without TensorFlow: lists of documents, taken from the shards in turn."""
        self.check(split)

        def read_shard(shard: int) -> Iterator[list[dict[str, Any]]]:
            cursor = self._cursor(split, [chunks.Piece(shard, 0, 1)], batch_size)
            for chunk in itertools.count():
                table, _, goes_on = self._read(cursor, 0, chunk)
                if not goes_on:
                    return
                if table.num_rows:
                    yield table.to_pylist()

        waiting = map(read_shard, range(len(self._open(split)[1])))
        open_shards = list(itertools.islice(waiting, _OPEN_SHARDS))
        while open_shards:
            for shard in list(open_shards):
                documents = next(shard, None)
                if documents is not None:
                    yield documents
                    continue
                open_shards.remove(shard)
                open_shards.extend(itertools.islice(waiting, 1))

    def numbered_documents(self, split: str, batch_size: int = 1024) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """The documents of a split in the order of its files, each with its file and its row in there, from 0."""
        self.check(split)
        tables, rows = self._open(split)
        for shard, where in enumerate(rows):
            cursor = self._cursor(split, [chunks.Piece(shard, 0, 1)], batch_size)
            for chunk in itertools.count():
                table, numbers, goes_on = self._read(cursor, 0, chunk)
                if not goes_on:
                    break
                for number, document in zip(numbers.tolist(), table.to_pylist(), strict=True):
                    yield tables.shards[where.shard].name, number, document

    def is_remote(self, split: str) -> bool:
        """Whether reading a split needs the network."""
        return any(shard.is_remote for shard in self._open(split)[0].shards)

    def get_dataset(  # type: ignore[override]
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        *,
        num_epochs: int | None = 1,
        **unused_kwargs,
    ) -> tf.data.Dataset:
        """The documents of one reader, one by one; see `get_chunks`."""
        del unused_kwargs
        return self.get_chunks(split, shuffle, seed, shard_info, num_epochs=num_epochs).unbatch()

    def get_chunks(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        *,
        num_epochs: int | None = 1,
        start: Sequence[int] | None = None,
    ) -> tf.data.Dataset:
        """The documents of one reader, as many at a time as are read.

        Shuffling orders pieces, and documents within a chunk, anew in every epoch.

        Args:
          split: a split.
          shuffle: whether to shuffle.
          seed: of the order; None draws one.
          shard_info: which reader of how many.
          num_epochs: passes over the documents, each in another order; None repeats for ever.
          start: the (epoch, shard, row) of the document to begin with; None is the first.

        Raises:
          FileNotFoundError, ValueError: see `check`; also if there are fewer documents than readers.
        """
        self.check(split)
        reader, num_readers = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        seed = secrets.randbits(31) if seed is None else int(seed)
        pieces = self._share(split, num_readers)[reader]
        cursor = self._cursor(split, pieces, self._chunk_documents)
        if not self._has_documents(cursor, len(pieces)):
            raise ValueError(
                f"Reader {reader} of {num_readers} has no document in split {split!r}, files "
                f"{_shorten(self.list_shards(split))}; set DatasetConfig.num_readers to fewer than the documents."
            )
        fields = list(self._schemas[split])
        dtypes = [self._tf_dtype(field) for field in fields]

        first_epoch, first_shard, first_row = map(int, start) if start else (0, 0, 0)
        first_index, first_chunk = cursor.find(first_shard, first_row) if start else (-1, 0)

        def order_of_epoch(epoch):
            order = np.arange(len(pieces))
            if shuffle:
                order = np.random.default_rng([seed, reader, epoch]).permutation(order)
            return order[order.tolist().index(first_index) :] if start and epoch == first_epoch else order

        def read_chunk(epoch, index, chunk):
            table, rows, goes_on = self._read(cursor, int(index), int(chunk))
            order = np.arange(len(rows))
            piece = pieces[index]
            if shuffle:
                key = [seed, epoch, piece.shard, piece.offset, chunk]
                order = np.random.default_rng(key).permutation(order)
            if (epoch, index, chunk) == (first_epoch, first_index, first_chunk) and goes_on:
                order = order[rows[order].tolist().index(first_row) :]
            ids = np.stack([np.full(len(rows), epoch), np.full(len(rows), piece.shard), rows], axis=1)
            columns = [_to_numpy(table.column(field.name)) for field in fields]
            return [column[order] for column in columns] + [ids[order].astype(np.int64), np.bool_(goes_on)]

        def pieces_of_epoch(epoch):
            order = tf.numpy_function(order_of_epoch, [epoch], tf.int64, stateful=False)
            order.set_shape([None])
            return tf.data.Dataset.from_tensor_slices(order).map(lambda index: (epoch, index))

        def chunks_of_piece(epoch, index):
            def numbered_chunk(chunk):
                *columns, ids, goes_on = tf.numpy_function(
                    read_chunk, [epoch, index, chunk], [*dtypes, tf.int64, tf.bool], stateful=False
                )
                for column in columns:
                    column.set_shape([None])
                ids.set_shape([None, 3])
                goes_on.set_shape([])
                named = {field.name: column for field, column in zip(fields, columns, strict=True)}
                return {**named, "document": ids}, goes_on

            is_first = (epoch == first_epoch) & (index == first_index)
            numbers = tf.data.Dataset.range(tf.where(is_first, tf.constant(first_chunk, tf.int64), 0), _FOREVER)
            numbered = numbers.map(numbered_chunk)
            return numbered.take_while(lambda documents, goes_on: goes_on).map(lambda documents, goes_on: documents)

        epochs = tf.data.Dataset.range(first_epoch, _FOREVER if num_epochs is None else num_epochs)
        return epochs.flat_map(pieces_of_epoch).flat_map(chunks_of_piece)

    def _tf_dtype(self, field: pa.Field) -> tf.DType:
        if _is_text(field.type) or pa.types.is_boolean(field.type) or field.name in self._nested_columns:
            return tf.string
        if pa.types.is_integer(field.type):
            return tf.int64
        if pa.types.is_floating(field.type):
            return tf.float32
        # How `datasets` says that a column has values of several types.
        kind = "values of several types" if "arrow.json" in str(field.type) else f"the type {field.type}"
        raise ValueError(f"Column {field.name!r} has {kind}; only strings, integers and floats can be read.")

    def _share(self, split: str, num_readers: int) -> list[list[chunks.Piece]]:
        """Each reader's pieces. In a small corpus, where some might get nothing, documents are counted and dealt."""
        tables, rows = self._open(split)
        is_counted = self._on_broken_shard == "stop" or not any(shard.is_remote for shard in tables.shards)
        if num_readers == 1 or sum(self._sizes(split)) > _SMALL_CORPUS or not is_counted:
            return chunks.split_shards(self._sizes(split), num_readers)
        if split not in self._counts or self._counts[split][0] is not tables:
            self._counts[split] = tables, [_count(tables, row) for row in rows]
        return chunks.deal_rows(self._counts[split][1], num_readers)

    def _sizes(self, split: str) -> list[float]:
        tables, rows = self._open(split)
        return [tables.shards[row.shard].size * tables.share(row.shard, row.start, row.stop) for row in rows]

    def _cursor(self, split: str, pieces: Sequence[chunks.Piece], chunk_documents: int) -> chunks.Cursor:
        tables, rows = self._open(split)
        part = self._part(split)
        keeps = None if part.share == splits_lib.EVERYTHING else part.keeps
        return chunks.Cursor(tables, rows, pieces, self._schemas[split], chunk_documents, keeps)

    def _has_documents(self, cursor: chunks.Cursor, num_pieces: int) -> bool:
        for index in range(num_pieces):
            for chunk in itertools.count():
                _, rows, goes_on = self._read(cursor, index, chunk)
                if len(rows):
                    return True
                if not goes_on:
                    break
        return False

    def _read(self, cursor: chunks.Cursor, index: int, chunk: int) -> tuple[pa.Table, np.ndarray, bool]:
        if cursor.broken is not None:
            raise cursor.broken
        try:
            return cursor.read(index, chunk)
        except remote_files.BrokenFileError as error:
            if self._on_broken_shard == "stop":
                # TensorFlow asks for what follows an error, and would wait for all the retries again each time.
                cursor.broken = error
                raise
            self._say_skipped(error)
            return cursor.nothing

    def _say_skipped(self, error: remote_files.BrokenFileError) -> None:
        self._num_skipped += 1
        logger.warning("Skipped the rest of a shard, number %d in this process: %s.", self._num_skipped, error)


def _count(tables: shards_lib.Tables, row: splits_lib.ShardRows) -> int:
    try:
        return max(0, tables.count_rows(row.shard, row.stop) - row.start)
    except chunks.UNREADABLE as error:
        raise chunks.broken(tables.shards[row.shard], row.start, error) from error


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _to_numpy(column: pa.ChunkedArray) -> np.ndarray:
    if _is_text(column.type):
        # TensorFlow takes bytes without encoding them again. A missing text is an empty one.
        values = [value or b"" for value in column.cast(pa.large_binary()).to_pylist()]
        return np.array(values, dtype=object)
    if pa.types.is_boolean(column.type):  # As files of text have them.
        return np.array([b"" if value is None else str(value).encode() for value in column.to_pylist()], dtype=object)
    if pa.types.is_nested(column.type):
        return np.array([json.dumps(value, ensure_ascii=False).encode() for value in column.to_pylist()], dtype=object)
    dtype = np.int64 if pa.types.is_integer(column.type) else np.float32
    return column.to_numpy().astype(dtype)


def _shorten(files: Sequence[str]) -> str:
    if not files:
        return "none"
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0]!r}{more}"
