"""A SeqIO data source over Hugging Face `datasets` streaming, whose position can be saved exactly.

The source is a pure function of counters: epoch -> order of the reader's pieces -> numbered chunks of a piece.
`tf.data` saves such a pipeline to the last element, shuffle buffers included, when external state is ignored; it cannot
save a generator. The files that are open meanwhile are a cache, and a restored iterator opens them again.
"""

import dataclasses
import difflib
import glob
import heapq
import os
import pathlib
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import seqio
import tensorflow as tf

# Bytes of files that may be read when a split is opened, to count their documents.
_SMALL_CORPUS = 1 << 20

# More counters than any run uses up.
_FOREVER = 2**62

_BUILDERS = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "csv",
}
_COMPRESSIONS = (".gz", ".zst", ".xz", ".bz2")

DataFiles = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclasses.dataclass(frozen=True, order=True)
class Piece:
    """Rows `offset`, `offset + step`, `offset + 2 * step` … of a shard: what one reader reads of one file."""

    shard: int
    offset: int
    step: int


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
    return [sorted(mine) for mine in pieces]


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


def _piece_of(pieces: Sequence[Piece], shard: int, row: int) -> Piece:
    """The piece that has a row of a shard."""
    return next(piece for piece in pieces if piece.shard == shard and row % piece.step == piece.offset)


def set_folders(tfds_data_dir: str | None, cache_dirs: Sequence[str]) -> None:
    """Where TensorFlow Datasets has its data, and where else SeqIO looks for cached tasks."""
    if tfds_data_dir:
        seqio.set_tfds_data_dir_override(tfds_data_dir)
    seqio.add_global_cache_dirs(list(cache_dirs))


class HuggingFaceSource(seqio.DataSource):
    """Documents of a data set that `datasets.load_dataset` can stream, in numbered chunks of numbered shards.

    Examples are `{column: value, ..., "document": int64[3]}`; `document` says (epoch, shard, row), so that a position
    in the stream can be read by people.

    Args:
      data_files: per split a file, a pattern, or a list of them. Files are shards.
      columns: the columns to read: strings, integers or floats.
      builder: the loader, such as "json", "parquet", "text" or "csv"; None takes it from the first file's name.
      chunk_documents: documents that are read at a time.
      hint: a sentence added to the error for missing files: what makes them.
      load_args: further arguments of `datasets.load_dataset`, such as `{"delimiter": ";"}`.
    """

    def __init__(
        self,
        data_files: Mapping[str, DataFiles],
        columns: Sequence[str] = ("text",),
        *,
        builder: str | None = None,
        chunk_documents: int = 1024,
        hint: str = "",
        load_args: Mapping[str, Any] | None = None,
    ):
        super().__init__(splits=data_files)
        self._data_files = {split: _as_list(files) for split, files in data_files.items()}
        self._columns = tuple(columns)
        self._builder = builder
        self._chunk_documents = chunk_documents
        self._hint = hint
        self._load_args = dict(load_args or {})
        self._streams: dict[str, Any] = {}
        self._schemas: dict[str, pa.Schema] = {}
        self._counts: dict[str, list[int]] = {}

    def __repr__(self) -> str:
        return f"HuggingFaceSource({self._data_files}, columns={self._columns}, load_args={self._load_args})"

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return True

    def list_shards(self, split: str) -> Sequence[str]:
        """The files of a split, in order.

        Raises:
          ValueError: if there is no such split.
          FileNotFoundError: if a file is missing or a pattern matches nothing.
        """
        if split not in self._data_files:
            raise ValueError(f"There is no split {split!r}; this source has {', '.join(map(repr, self._data_files))}.")
        files: list[str] = []
        for pattern in self._data_files[split]:
            found = sorted(glob.glob(str(pathlib.Path(pattern).expanduser()), recursive=True))  # noqa: PTH207, also absolute patterns
            if not found:
                what = "No file matches the pattern" if glob.has_magic(pattern) else "There is no file"
                raise FileNotFoundError(
                    f"{what} {pattern!r} (split {split!r}, working directory "
                    f"{str(pathlib.Path.cwd())!r}). {self._hint}".rstrip()
                )
            files.extend(str(pathlib.Path(file).absolute()) for file in found)
        return files

    def fingerprint(self, split: str) -> dict[str, Any]:
        """What the order of documents depends on. Directories do not count, so a corpus may move."""
        files = {pathlib.Path(file).name: pathlib.Path(file).stat().st_size for file in self.list_shards(split)}
        return {"files": files, "columns": list(self._columns), "chunk_documents": self._chunk_documents}

    def check(self, split: str) -> None:
        """Opens the split and looks at its first document.

        Raises:
          FileNotFoundError: if files are missing.
          ValueError: if the split is unknown or empty, or a column is missing or of a type that cannot be read.
        """
        if split in self._schemas:
            return
        where = f"split {split!r}, files {_shorten(self.list_shards(split))}"
        try:
            if not any(self._sizes(split)):
                raise StopIteration
            # `datasets` lets a StopIteration of its own escape for JSON without documents.
            table = next(iter(self._stream(split).with_format("arrow").iter(batch_size=1)))
        except StopIteration:
            raise ValueError(f"The corpus is empty: no document in {where}. {self._hint}".rstrip()) from None
        for column in self._columns:
            if column not in table.column_names:
                nearest = difflib.get_close_matches(column, table.column_names, n=1, cutoff=0.0)[0]
                raise ValueError(
                    f"There is no column {column!r} in {where}. The columns are "
                    f"{', '.join(map(repr, table.column_names))}; did you mean {nearest!r}?"
                )
            _tf_dtype(table.schema.field(column))
        self._schemas[split] = table.select(self._columns).schema
        self._check_every_file(split)

    def _check_every_file(self, split: str) -> None:
        """Reads the first document of each file, which finds another format now and not in the middle of a run."""
        for shard, file in enumerate(self.list_shards(split)):
            try:
                next(self._tables(split, shard, 1), None)
            except ValueError as error:  # what `datasets` and pyarrow raise for content
                reason = str(error).strip().splitlines()[0]
                raise ValueError(
                    f"{file} cannot be read with the columns {list(self._columns)} like the other files of split "
                    f"{split!r} ({type(error).__name__}: {reason}). Mend it or leave it out."
                ) from error

    def documents(self, split: str, batch_size: int = 1024) -> Iterator[list[dict[str, Any]]]:
        """One pass over a split without TensorFlow: lists of documents, taken from all shards in turn."""
        self.check(split)
        open_shards = [self._tables(split, shard, batch_size) for shard in range(len(self.list_shards(split)))]
        while open_shards:
            for tables in list(open_shards):
                table = next(tables, None)
                if table is None:
                    open_shards.remove(tables)
                else:
                    yield table.to_pylist()

    def get_dataset(  # type: ignore[override]
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        *,
        num_epochs: int | None = 1,
        start: Sequence[int] | None = None,
        **unused_kwargs,
    ) -> tf.data.Dataset:
        """The documents of one reader. Shuffling orders pieces, and documents within a chunk, anew in every epoch.

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
        del unused_kwargs
        self.check(split)
        reader, num_readers = (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        seed = secrets.randbits(31) if seed is None else int(seed)
        pieces = self._share(split, num_readers)[reader]
        cursor = _Cursor(self, split, pieces, self._chunk_documents)
        if not any(cursor.has_rows(index) for index in range(len(pieces))):
            raise ValueError(
                f"Reader {reader} of {num_readers} has no document in split {split!r}, files "
                f"{_shorten(self.list_shards(split))}; set DatasetConfig.num_readers to fewer than the documents."
            )
        fields = list(self._schemas[split])
        dtypes = [_tf_dtype(field) for field in fields]
        first_epoch, first_shard, first_row = map(int, start) if start else (0, 0, 0)
        first_index = pieces.index(_piece_of(pieces, first_shard, first_row)) if start else -1
        first_chunk = first_row // (self._chunk_documents * pieces[first_index].step)

        def order_of_epoch(epoch):
            order = np.arange(len(pieces))
            if shuffle:
                order = np.random.default_rng([seed, reader, epoch]).permutation(order)
            return order[order.tolist().index(first_index) :] if start and epoch == first_epoch else order

        def read_chunk(epoch, index, chunk):
            table, rows = cursor.read(int(index), int(chunk))
            order = np.arange(len(rows))
            piece = pieces[index]
            if shuffle:
                key = [seed, epoch, piece.shard, piece.offset, chunk]
                order = np.random.default_rng(key).permutation(order)
            if (epoch, index, chunk) == (first_epoch, first_index, first_chunk):
                order = order[rows[order].tolist().index(first_row) :]
            ids = np.stack([np.full(len(rows), epoch), np.full(len(rows), piece.shard), rows], axis=1)
            columns = [_to_numpy(table.column(field.name)) for field in fields]
            return [column[order] for column in columns] + [ids[order].astype(np.int64)]

        def pieces_of_epoch(epoch):
            order = tf.numpy_function(order_of_epoch, [epoch], tf.int64, stateful=False)
            order.set_shape([None])
            return tf.data.Dataset.from_tensor_slices(order).map(lambda index: (epoch, index))

        def chunks_of_piece(epoch, index):
            def numbered_chunk(chunk):
                *columns, ids = tf.numpy_function(
                    read_chunk, [epoch, index, chunk], [*dtypes, tf.int64], stateful=False
                )
                for column in columns:
                    column.set_shape([None])
                ids.set_shape([None, 3])
                return {**{field.name: column for field, column in zip(fields, columns, strict=True)}, "document": ids}

            is_first = (epoch == first_epoch) & (index == first_index)
            chunks = tf.data.Dataset.range(tf.where(is_first, tf.constant(first_chunk, tf.int64), 0), _FOREVER).map(
                numbered_chunk
            )
            return chunks.take_while(lambda documents: tf.shape(documents["document"])[0] > 0)

        epochs = tf.data.Dataset.range(first_epoch, _FOREVER if num_epochs is None else num_epochs)
        return epochs.flat_map(pieces_of_epoch).flat_map(chunks_of_piece).unbatch()

    def _share(self, split: str, num_readers: int) -> list[list[Piece]]:
        """Each reader's pieces. In a small corpus, where some might get nothing, documents are counted and dealt."""
        if num_readers == 1 or sum(self._sizes(split)) > _SMALL_CORPUS:
            return split_shards(self._sizes(split), num_readers)
        if split not in self._counts:
            shards = range(len(self.list_shards(split)))
            self._counts[split] = [
                sum(table.num_rows for table in self._tables(split, shard, self._chunk_documents)) for shard in shards
            ]
        return deal_rows(self._counts[split], num_readers)

    def _sizes(self, split: str) -> list[int]:
        return [pathlib.Path(file).stat().st_size for file in self.list_shards(split)]

    def _stream(self, split: str):
        if split not in self._streams:
            # `datasets` takes seconds to import, and a task that is only registered does not need it.
            import datasets

            files = list(self.list_shards(split))
            builder = self._builder or _builder_of(files[0])
            args = dict(self._load_args)
            if files[0].endswith(".tsv"):
                args.setdefault("delimiter", "\t")
            stream = datasets.load_dataset(builder, data_files={split: files}, split=split, streaming=True, **args)
            assert stream.num_shards == len(files), (stream.num_shards, files)
            self._streams[split] = stream
        return self._streams[split]

    def _tables(self, split: str, shard: int, batch_size: int) -> Iterator[pa.Table]:
        stream = self._stream(split)
        one_shard = stream.shard(stream.num_shards, shard).select_columns(list(self._columns))
        return one_shard.with_format("arrow").iter(batch_size=batch_size)


class _Cursor:
    """Reads numbered chunks of pieces, and keeps the file of the last one open, so that reading on costs no seeking."""

    def __init__(self, source: HuggingFaceSource, split: str, pieces: Sequence[Piece], chunk_documents: int):
        self._source = source
        self._split = split
        self._pieces = pieces
        self._chunk_documents = chunk_documents
        self._lock = threading.Lock()
        # The open piece, the row of the shard where `_waiting` begins, and what was read and may be asked for.
        self._open: int | None = None
        self._start = 0
        self._waiting: list[pa.Table] = []
        self._tables: Iterator[pa.Table] = iter(())

    def has_rows(self, index: int) -> bool:
        return len(self.read(index, 0)[1]) > 0

    def read(self, index: int, chunk: int) -> tuple[pa.Table, np.ndarray]:
        """Documents of a chunk and their rows in the shard; none behind the end of the piece."""
        piece = self._pieces[index]
        rows_per_chunk = self._chunk_documents * piece.step
        start = chunk * rows_per_chunk
        with self._lock:
            if self._open != index or start < self._start:
                self._tables = self._source._tables(self._split, piece.shard, self._chunk_documents)
                self._start, self._waiting = 0, []
            # Stays unset if reading fails: a broken stream would otherwise pass for one that has ended.
            self._open = None
            table = self._advance(start, start + rows_per_chunk)
            self._open = index
        rows = np.arange(piece.offset, table.num_rows, piece.step)
        return (table.take(rows) if piece.step > 1 else table), start + rows

    def _advance(self, start: int, stop: int) -> pa.Table:
        """Rows `[start, stop)` of the open shard. Keeps them, so that the same chunk can be asked for again."""
        end = self._start + sum(table.num_rows for table in self._waiting)
        while end < stop:
            table = next(self._tables, None)
            if table is None:
                break
            self._waiting.append(table)
            end += table.num_rows
            self._drop_before(start)
        self._drop_before(start)
        if not self._waiting:
            return self._source._schemas[self._split].empty_table()
        return pa.concat_tables(self._waiting).slice(start - self._start, stop - start)

    def _drop_before(self, start: int) -> None:
        while self._waiting and self._start + self._waiting[0].num_rows <= start:
            self._start += self._waiting.pop(0).num_rows


def _as_list(files: DataFiles) -> list[str]:
    return [os.fspath(files)] if isinstance(files, str | os.PathLike) else [os.fspath(file) for file in files]


def _builder_of(file: str) -> str:
    suffixes = [s for s in pathlib.PurePath(file).suffixes if s.lower() not in _COMPRESSIONS]
    builder = _BUILDERS.get(suffixes[-1].lower()) if suffixes else None
    if builder is None:
        raise ValueError(
            f"The format of {file!r} is not clear from its name; name it {', '.join(_BUILDERS)} (possibly with "
            f"{', '.join(_COMPRESSIONS)} behind), or give the source builder='json', 'parquet', 'text' or 'csv'."
        )
    return builder


def _tf_dtype(field: pa.Field) -> tf.DType:
    if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
        return tf.string
    if pa.types.is_integer(field.type):
        return tf.int64
    if pa.types.is_floating(field.type):
        return tf.float32
    raise ValueError(f"Column {field.name!r} is of type {field.type}; only strings, integers and floats can be read.")


def _to_numpy(column: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        # TensorFlow takes bytes without encoding them again. A missing text is an empty one.
        values = [value or b"" for value in column.cast(pa.large_binary()).to_pylist()]
        return np.array(values, dtype=object)
    dtype = np.int64 if pa.types.is_integer(column.type) else np.float32
    return column.to_numpy().astype(dtype)


def _shorten(files: Sequence[str]) -> str:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0]!r}{more}"
