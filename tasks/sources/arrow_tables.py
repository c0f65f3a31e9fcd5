"""Shards, local or remote, as Arrow tables of the wanted columns, from a row on.

Parquet is read by row groups: what lies before the row is not read. Other formats go through the loaders of Hugging
Face's `datasets`, which get their bytes, decompressed, from here; they are read from the front.
"""

import bz2
import dataclasses
import gzip
import hashlib
import io
import logging
import lzma
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet

from tasks import remote_files

BUILDERS = ("json", "parquet", "text", "csv")
_BUILDER_OF_SUFFIX = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "csv",
}
_DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    ".xz": lzma.LZMAFile,
    ".zst": lambda file: pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"),
}
_PROTOCOL = "limba-shard"


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of a corpus.

    Attributes:
      name: its absolute path, its URL, or its path in a repository.
      size: its bytes.
      place: where it is read.
    """

    name: str
    size: int
    place: pathlib.Path | remote_files.RemoteFile

    @property
    def is_remote(self) -> bool:
        return not isinstance(self.place, pathlib.Path)

    @property
    def path(self) -> pathlib.PurePath:
        """Its name without what may follow in a URL."""
        return pathlib.PurePath(self.name.partition("?")[0] if self.is_remote else self.name)

    def open(self) -> BinaryIO:
        """Its content from the front, decompressed."""
        file: Any = self.place.open("rb") if isinstance(self.place, pathlib.Path) else self.place.open()
        decompress = _DECOMPRESSORS.get(self.path.suffix.lower())
        return io.BufferedReader(decompress(file), 1 << 20) if decompress else file

    def open_parquet(self) -> pa.parquet.ParquetFile:
        # Buffering in advance makes one read of neighbouring columns and pages.
        file = self.place if isinstance(self.place, pathlib.Path) else self.place.open_parts()
        return pa.parquet.ParquetFile(file, pre_buffer=True)


def local_shard(path: pathlib.Path) -> Shard:
    return Shard(str(path), path.stat().st_size, path)


class Tables:
    """The shards of a split, which have one format and the same columns.

    Args:
      files: the shards.
      builder: the loader of `datasets`: "json", "parquet", "text" or "csv"; None takes it from the first shard's name.
      load_args: its options.

    Raises:
      ValueError: if the format cannot be told.
    """

    def __init__(self, files: Sequence[Shard], builder: str | None, load_args: Mapping[str, Any]):
        self.shards = tuple(files)
        self._builder = builder or builder_of(files[0].path)
        self._load_args = dict(load_args)
        if ".tsv" in files[0].path.suffixes:
            self._load_args.setdefault("delimiter", "\t")
        self._stream: Any = None

    def open(
        self, shard: int, columns: Sequence[str] | None, batch_size: int, first_row: int = 0
    ) -> tuple[int, Iterator[pa.Table]]:
        """Tables of at most `batch_size` rows, and the row where they begin, which is `first_row` or lies before it.

        Args:
          shard: the number of a shard.
          columns: the columns to read; None reads all of them.
          batch_size: rows of a table.
          first_row: the first row that is needed.
        """
        if self._builder == "parquet":
            return _read_parquet(self.shards[shard], columns, batch_size, first_row)
        stream = self._open_stream()
        one_shard = stream.shard(stream.num_shards, shard)
        if columns is not None:
            one_shard = one_shard.select_columns(list(columns))
        return 0, one_shard.with_format("arrow").iter(batch_size=batch_size)

    def schema(self, shard: int) -> pa.Schema | None:
        """Columns and types of a shard, as its beginning tells; None if it has no rows.

        Raises:
          ValueError: for csv whose rows have more fields than its header.
        """
        if self._builder == "parquet":
            with self.shards[shard].open_parquet() as file:
                return file.schema_arrow if file.metadata.num_rows else None
        try:
            # `datasets` lets a StopIteration of its own escape for JSON without documents.
            table = next(self.open(shard, None, 1)[1], None)
        except StopIteration:
            return None
        if table is None or not table.num_rows:
            return None
        if unnamed := [name for name in table.schema.names if name.startswith("__index_level_")]:
            # What pandas makes of them, and every column has the values of another.
            named = [name for name in table.schema.names if name not in unnamed]
            raise ValueError(
                f"rows have {len(table.schema)} fields and the header {len(named)}, {', '.join(map(repr, named))}; "
                "put texts that hold the delimiter into double quotes"
            )
        return table.schema

    def knows_rows(self) -> bool:
        """Whether the number of rows can be had without reading everything."""
        return self._builder == "parquet"

    def count_rows(self, shard: int, at_most: int | None = None) -> int:
        """Rows of a shard, or `at_most` if it has more: no more than these are read."""
        if self._builder == "parquet":
            with self.shards[shard].open_parquet() as file:
                rows = file.metadata.num_rows
            return rows if at_most is None else min(rows, at_most)
        rows = 0
        for table in self.open(shard, None, 1024)[1]:
            rows += table.num_rows
            if at_most is not None and rows >= at_most:
                return at_most
        return rows

    def share(self, shard: int, start: int, stop: int | None) -> float:
        """The share of a shard that rows `[start, stop)` are; 1 where it is not known without reading the shard."""
        if (start, stop) == (0, None) or not self.knows_rows():
            return 1.0
        rows = self.count_rows(shard)
        return ((rows if stop is None else stop) - start) / rows if rows else 0.0

    def _open_stream(self):
        if self._stream is None:
            # `datasets` takes seconds to import, and a task that is only registered does not need it.
            import datasets

            # It logs what it then raises.
            logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)
            files = [_publish(shard) for shard in self.shards]
            self._stream = datasets.load_dataset(
                self._builder, data_files={"train": files}, split="train", streaming=True, **self._load_args
            )
            assert self._stream.num_shards == len(files), (self._stream.num_shards, files)
        return self._stream


def _read_parquet(
    shard: Shard, columns: Sequence[str] | None, batch_size: int, first_row: int
) -> tuple[int, Iterator[pa.Table]]:
    file = shard.open_parquet()
    missing = [column for column in columns or () if column not in file.schema_arrow.names]
    if missing:
        raise ValueError(f"no columns {missing}, only {file.schema_arrow.names}")
    begin = group = 0
    while group < file.num_row_groups and begin + file.metadata.row_group(group).num_rows <= first_row:
        begin += file.metadata.row_group(group).num_rows
        group += 1
    groups = list(range(group, file.num_row_groups))

    def tables() -> Iterator[pa.Table]:
        with file:
            for number in groups:
                for batch in file.iter_batches(batch_size, [number], columns):
                    yield pa.Table.from_batches([batch])

    return begin, tables()


# ---------------------------------------------- bytes for `datasets` ----------------------------------------------

_published: dict[str, Shard] = {}


def _publish(shard: Shard) -> str:
    """A path under which this process opens the shard's content through fsspec."""
    path = shard.path
    if path.suffix.lower() in _DECOMPRESSORS:
        path = path.with_suffix("")
    # The name is for messages; characters of patterns would be taken for such.
    name = re.sub(r"[^\w.-]", "_", path.name)
    where = shard.place.url if isinstance(shard.place, remote_files.RemoteFile) else shard.name
    key = f"{hashlib.sha256(where.encode()).hexdigest()[:16]}/{name}"
    _published[key] = shard
    return f"{_PROTOCOL}://{key}"


class _ShardFileSystem(fsspec.AbstractFileSystem):
    protocol = _PROTOCOL

    def info(self, path: str, **_) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path not in _published:
            raise FileNotFoundError(path)
        return {"name": path, "size": _published[path].size, "type": "file"}

    def _open(self, path: str, mode: str = "rb", **_) -> BinaryIO:
        assert mode == "rb", mode
        return _published[path].open()


fsspec.register_implementation(_PROTOCOL, _ShardFileSystem, clobber=True)


def builder_of(path: pathlib.PurePath) -> str:
    """The loader of a file, by its name.

    Raises:
      ValueError: if the name does not say.
    """
    suffixes = [s for s in path.suffixes if s.lower() not in _DECOMPRESSORS]
    builder = _BUILDER_OF_SUFFIX.get(suffixes[-1].lower()) if suffixes else None
    if builder is None:
        raise ValueError(
            f"The format of {str(path)!r} is not clear from its name; name it {', '.join(_BUILDER_OF_SUFFIX)} "
            f"(possibly with {', '.join(_DECOMPRESSORS)} behind), or give the source builder='json', 'parquet', 'text' "
            "or 'csv'."
        )
    return builder
