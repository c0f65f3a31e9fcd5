"""Shards, local or remote, as Arrow tables of the wanted columns, from a row on.

Parquet is read by row groups: what lies before the row is not read. Other formats are read from the front, or by a
function of the user's. Options of a loader are those of Hugging Face's `datasets`, which then reads; its bytes,
decompressed, come from here.
"""

import bz2
import codecs
import dataclasses
import gzip
import hashlib
import io
import itertools
import logging
import lzma
import pathlib
import re
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet

from limba.files import untrusted_files, untrusted_json
from limba.tasks.sources import class_names
from limba.tasks.sources.read_columns import (
    arrow_columns,
    bounded_lines,
    csv_columns,
    json_columns,
    line_tables,
    parquet_columns,
)
from limba.tasks.sources.remote_files import bucket_files, http_files

BUILDERS = ("json", "parquet", "text", "csv", "arrow")
# Options that keep a column of csv as texts; a split of another format beside it has none of them.
OF_CSV = ("converters", "keep_default_na")
_BUILDER_OF_SUFFIX = {
    ".jsonl": "json",
    ".json": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "arrow",
}
SUFFIXES = tuple(_BUILDER_OF_SUFFIX)
_BUILDERS = tuple(dict.fromkeys(_BUILDER_OF_SUFFIX.values()))
_DECOMPRESSORS: dict[str, Callable[[Any], Any]] = {
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".bz2": bz2.BZ2File,
    # Zeros are empty files of the older format, one after the other.
    ".xz": lambda file: lzma.LZMAFile(file, format=lzma.FORMAT_XZ),  # noqa: SIM115
    ".zst": lambda file: pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd"),
}
_PROTOCOL = "limba-shard"
# A corpus up to this size is kept in memory: bytes of its files, which may be compressed, and of its tables.
_KEPT_FILES = 32 << 20
_KEPT_BYTES = 128 << 20
# Of a file of JSON in a larger corpus, before the training: enough for its columns.
_GLANCE = 16 << 10
# Of a table, where nobody asks for another number.
_TABLE_ROWS = 1024

# Reads the documents of an open file in any other format, each as {column: value}.
RowsFn = Callable[[BinaryIO], Iterable[Mapping[str, Any]]]
Builder = str | RowsFn


class FormatError(ValueError):
    """A function that reads rows cannot read a file, whose format is the function's, whatever the name says."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of a corpus.

    Attributes:
      name: its absolute path, its URL, or its path in a repository.
      size: its bytes.
      location: where it is read.
    """

    name: str
    size: int
    location: pathlib.Path | http_files.RemoteFile | bucket_files.BucketFile

    @property
    def is_remote(self) -> bool:
        return not isinstance(self.location, pathlib.Path)

    @property
    def path(self) -> pathlib.PurePath:
        """The name without the query of a URL."""
        return pathlib.PurePath(self.name.partition("?")[0] if self.is_remote else self.name)

    def open(self) -> BinaryIO:
        """Its content from the front, decompressed."""
        file: Any = self.location.open("rb") if isinstance(self.location, pathlib.Path) else self.location.open()
        decompress = _DECOMPRESSORS.get(self.path.suffix.lower())
        return io.BufferedReader(decompress(file), 1 << 20) if decompress else file

    def open_lines(self) -> BinaryIO:
        """As `open`, of a text; a line that does not end is an error."""
        return bounded_lines.bounded(self.open())

    def open_parquet(self) -> pa.parquet.ParquetFile:
        # Buffering in advance makes one read of neighbouring columns and pages.
        file = self.location if isinstance(self.location, pathlib.Path) else self.location.open_parts()
        return pa.parquet.ParquetFile(file, pre_buffer=True)


def local_shard(path: pathlib.Path) -> Shard:
    """A file on this machine. Raises ValueError for what is none, and a pointer of git-lfs, which could be read."""
    return Shard(str(path), untrusted_files.check_is_file(path), path)


@dataclasses.dataclass(frozen=True)
class Beginning:
    """What the first rows of a shard have.

    Attributes:
      names: of all their columns, without those that are filled.
      schema: of those that are read, as far as they are there.
    """

    names: Sequence[str]
    schema: pa.Schema


class Tables:
    """The shards of a split, which have one format. Their other columns are not read, and may be anything.

    Args:
      builder: the loader of `datasets`: "json", "parquet", "text", "csv" or "arrow"; or a function that reads an open
        file's rows. None takes it from the first shard's name.
      load_args: the loader's options.
      columns: that are read.
      fill: the values of columns that a file of csv may lack.

    Raises:
      ValueError: if the format is not clear from the name, files have several, or there is no such loader.
    """

    def __init__(
        self,
        files: Sequence[Shard],
        builder: Builder | None,
        load_args: Mapping[str, Any],
        columns: Sequence[str],
        fill: Mapping[str, str] = types.MappingProxyType({}),
    ):
        self.shards = tuple(files)
        self._columns = tuple(columns)
        self._fill = fill
        # Of all columns of each shard, as they are found.
        self._names: Sequence[dict[str, Any]] = [{} for _ in files]
        self.builder = builder or builder_of(files[0].path)
        # Others of `datasets` open what is no data: "pandas" runs pickles.
        if isinstance(self.builder, str) and self.builder not in _BUILDERS:
            raise ValueError(
                f"builder is {untrusted_files.shown(self.builder)}; it is {', '.join(map(repr, _BUILDERS))}, or a "
                "function that reads an open file's rows."
            )
        if builder is None:
            _check_one_format(files)
        self._load_args = {k: v for k, v in load_args.items() if self.builder == "csv" or k not in OF_CSV}
        if ".tsv" in files[0].path.suffixes:
            self._load_args.setdefault("delimiter", "\t")
        self._dataset: Any = None
        is_small = sum(shard.size for shard in files) <= _KEPT_FILES and not any(shard.is_remote for shard in files)
        self._kept: dict[Any, pa.Table] | None = {} if is_small else None
        self._keeping = threading.Lock()

    def open(self, shard: int, batch_size: int, first_row: int = 0) -> tuple[int, Iterator[pa.Table]]:
        """Tables of at most `batch_size` rows, and the row where they begin, which is `first_row` or lies before it.

        `shard` is a number. The tables of a small corpus are kept: its epochs are short, each of several readers reads
        all its files, and opening a file costs more than its rows.
        """
        if (table := self._keep(shard, batch_size)) is None:
            return self._open(shard, batch_size, first_row)
        return first_row, (table.slice(row, batch_size) for row in range(first_row, table.num_rows, batch_size))

    def _keep(self, shard: int, batch_size: int) -> pa.Table | None:
        """All rows of a shard of a small corpus; None of a large one, or of a shard that cannot be read to its end."""
        with self._keeping:
            if self._kept is None:
                return None
            if (kept := self._kept.get(shard)) is not None:
                return kept
            tables, size = [], sum(other.nbytes for other in self._kept.values())
            try:
                for table in self._open(shard, batch_size)[1]:
                    tables.append(table)
                    if (size := size + table.nbytes) > _KEPT_BYTES:  # A small file may stand for any number of rows.
                        self._kept = None
                        return None
            except Exception:  # It is read again as it comes: the rows before the error count, and the error is raised.
                return None
            self._kept[shard] = whole = pa.concat_tables(tables) if tables else pa.table({})
            return whole

    def _open(self, shard: int, batch_size: int, first_row: int = 0) -> tuple[int, Iterator[pa.Table]]:
        if self.builder == "parquet":
            return _read_parquet(self.shards[shard], self._columns, batch_size, first_row)
        if self.builder == "csv":
            file, names = self.shards[shard], self._names[shard]
            tables = csv_columns.tables(file.open_lines, self._columns, self._load_args, names, self._fill, file.name)
            return 0, (table.slice(row, batch_size) for table in tables for row in range(0, len(table), batch_size))
        if self.builder == "arrow":
            return 0, arrow_columns.tables(self.shards[shard].open(), self._columns, self._names[shard], batch_size)
        if callable(self.builder):
            return 0, _read_rows(self.shards[shard], self.builder, self._columns, batch_size, self._names[shard])
        if not self._load_args and self.builder == "json":
            return 0, line_tables.of_json(
                self.shards[shard].open_lines(), self._columns, self._names[shard], batch_size
            )
        if not self._load_args and self.builder == "text":
            return 0, line_tables.of_text(self.shards[shard].open_lines(), batch_size)
        dataset = self._open_dataset()
        return 0, dataset.shard(dataset.num_shards, shard).with_format("arrow").iter(batch_size=batch_size)

    def beginning(self, shard: int, is_glance: bool = False) -> Beginning | None:
        """Columns and types of the first rows of a shard; None if it has no rows.

        Args:
          is_glance: whether less may be read of a large corpus than what decides on the types.

        Raises:
          ValueError: for csv whose rows have more fields than its header.
        """
        if self.builder == "parquet":
            with self.shards[shard].open_parquet() as file:
                names, schema, num_rows = file.schema_arrow.names, _decoded(file.schema_arrow), file.metadata.num_rows
        else:
            try:
                table = self._first_table(shard, is_glance)
            except StopIteration:
                return None
            if table is None:
                return None
            schema, num_rows = table.schema, table.num_rows
            names = list(self._names[shard] or schema.names)
        # A loader may give a shard the columns of another.
        there = [schema.field(name) for name in self._columns if name in schema.names and name in names]
        in_file = [name for name in names if self._names[shard].get(name) is None]
        return Beginning(in_file, pa.schema(there)) if num_rows else None

    def names(self, shard: int) -> list[str]:
        """Of all columns of a shard, also of those that are not read."""
        if self.builder == "parquet":
            with self.shards[shard].open_parquet() as file:
                return list(file.schema_arrow.names)
        try:
            table = self._first_table(shard)
        except StopIteration:
            return []
        return list(self._names[shard] or ([] if table is None else table.schema.names))

    def class_names(self, shard: int) -> class_names.Names:
        """The names of numbers by column, where a file of Parquet or Arrow has them.

        Raises:
          ValueError: if they are damaged.
        """
        file = self.shards[shard]
        if self.builder == "parquet":
            with file.open_parquet() as opened:
                return class_names.of_schema(opened.schema_arrow, file.name)
        if self.builder != "arrow":
            return {}
        if found := class_names.of_schema(arrow_columns.schema(file.open()), file.name):
            return found
        beside = file.location.with_name(class_names.FILE) if isinstance(file.location, pathlib.Path) else None
        return class_names.of_info(untrusted_json.read_object(beside)) if beside and beside.is_file() else {}

    def _first_table(self, shard: int, is_glance: bool = False) -> pa.Table | None:
        """The first row of a shard, or more; None if it has none.

        Raises:
          StopIteration: of `datasets`, which lets one of its own escape for JSON without documents.
        """
        file = self.shards[shard]
        is_one_block = file.size <= line_tables.BLOCK and file.path.suffix.lower() not in _DECOMPRESSORS
        # The first row of such a file costs as much as all of them, which are wanted next.
        is_read_whole = self.builder == "json" and not self._load_args and is_one_block
        if is_read_whole and (kept := self._keep(shard, _TABLE_ROWS)) is not None:
            return kept
        if is_glance and self.builder == "json" and not self._load_args:
            with file.open_lines() as lines:
                content = lines.read(_GLANCE) + lines.readline()
            if not content.removeprefix(codecs.BOM_UTF8).startswith(b"["):  # A list is read as a whole.
                return next(line_tables.of_json(io.BytesIO(content), self._columns, self._names[shard], 1), None)
        return next(self._open(shard, 1)[1], None)

    def knows_rows(self) -> bool:
        """Whether the number of rows can be had without reading everything."""
        return self.builder == "parquet"

    def count_rows(self, shard: int, at_most: int | None = None) -> int:
        """Rows of a shard, or `at_most` if it has more: no more than these are read."""
        if self.builder == "parquet":
            with self.shards[shard].open_parquet() as file:
                rows = file.metadata.num_rows
            return rows if at_most is None else min(rows, at_most)
        rows = 0
        for table in self.open(shard, _TABLE_ROWS)[1]:
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

    def _open_dataset(self) -> Any:
        if self._dataset is None:
            # `datasets` takes seconds to import, and a task that is only registered does not need it.
            import datasets

            # It logs the errors that it then raises.
            logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)
            assert isinstance(self.builder, str)
            files, self._names = zip(
                *(_publish(shard, self.builder, self._columns) for shard in self.shards), strict=True
            )
            self._dataset = datasets.load_dataset(
                self.builder, data_files={"train": list(files)}, split="train", streaming=True, **self._load_args
            )
            assert self._dataset.num_shards == len(files), (self._dataset.num_shards, files)
        return self._dataset


def _check_one_format(files: Sequence[Shard]) -> None:
    """Raises ValueError for files whose names say that they have another format than the first."""
    first: tuple[str, Shard] | None = None
    for file in files:
        suffix = next((s.lower() for s in reversed(file.path.suffixes) if s.lower() in _BUILDER_OF_SUFFIX), None)
        if suffix is None:
            continue
        # Rows of csv and of tsv are separated by other characters.
        kind = "tsv" if suffix == ".tsv" else _BUILDER_OF_SUFFIX[suffix]
        first = first or (kind, file)
        if kind != first[0]:
            raise ValueError(
                f"The files of a split have one format, and {first[1].name} is {first[0]} and {file.name} {kind}. Name "
                f"files of one format, such as '*{first[1].path.suffix}', or write the others in it."
            )


def _read_parquet(
    shard: Shard, columns: Sequence[str], batch_size: int, first_row: int
) -> tuple[int, Iterator[pa.Table]]:
    file = shard.open_parquet()
    missing = [column for column in columns if column not in file.schema_arrow.names]
    if missing:
        raise ValueError(f"no columns {missing}, only {file.schema_arrow.names}")
    begin = group = 0
    while group < file.num_row_groups and begin + file.metadata.row_group(group).num_rows <= first_row:
        begin += file.metadata.row_group(group).num_rows
        group += 1

    def tables() -> Iterator[pa.Table]:
        with file:
            yield from parquet_columns.tables(file, columns, batch_size, group)

    return begin, tables()


def _decoded(schema: pa.Schema) -> pa.Schema:
    """The types of the values that columns have; categories of pandas are numbers of them."""
    kinds = (field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema)
    return pa.schema([field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)])


def _read_rows(
    shard: Shard, rows_fn: RowsFn, columns: Sequence[str], batch_size: int, names: dict[str, None]
) -> Iterator[pa.Table]:
    with shard.open() as file:
        try:
            rows = iter(rows_fn(file))
            while batch := list(itertools.islice(rows, batch_size)):
                names.update(dict.fromkeys(batch[0]))
                yield pa.table({name: [row.get(name) for row in batch] for name in columns})
        except (http_files.BrokenFileError, http_files.RefusedError, FormatError):
            raise
        except Exception as error:  # A function of the user's own may raise anything.
            raise FormatError(f"{rows_fn.__name__} raises {type(error).__name__}: {error}") from error


# ---------------------------------------------- bytes for `datasets` ----------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Published:
    """A shard, how it is read, and where the names of its columns go."""

    shard: Shard
    builder: str
    columns: tuple[str, ...]
    names: dict[str, None]


_published: dict[str, _Published] = {}


def _publish(shard: Shard, builder: str, columns: tuple[str, ...]) -> tuple[str, dict[str, None]]:
    """A path under which this process opens the shard's content through fsspec, and the names of its columns."""
    path = shard.path
    if path.suffix.lower() in _DECOMPRESSORS:
        path = path.with_suffix("")
    # The name is for messages; `*` and the like in it would be taken for patterns.
    name = re.sub(r"[^\w.-]", "_", path.name)
    where = shard.location.url if isinstance(shard.location, http_files.RemoteFile) else shard.name
    key = f"{hashlib.sha256(repr((where, columns)).encode()).hexdigest()[:16]}/{name}"
    if key not in _published or _published[key].shard != shard:
        _published[key] = _Published(shard, builder, columns, {})
    return f"{_PROTOCOL}://{key}", _published[key].names


class _ShardFileSystem(fsspec.AbstractFileSystem):
    protocol = _PROTOCOL

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path not in _published:
            raise FileNotFoundError(path)
        return {"name": path, "size": _published[path].shard.size, "type": "file"}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> BinaryIO:
        assert mode == "rb", mode
        published = _published[path]
        file = published.shard.open_lines()
        if published.builder == "text":
            _skip_byte_order_mark(file)
        if published.builder != "json":
            return file
        return json_columns.only_columns(untrusted_json.guarded(file), published.columns, published.names)


def _skip_byte_order_mark(file: Any) -> None:
    """Editors of Windows begin files with it. The loaders of JSON and csv leave it out, that of text does not."""
    if file.peek(len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8):
        file.read(len(codecs.BOM_UTF8))


fsspec.register_implementation(_PROTOCOL, _ShardFileSystem, clobber=True)


def builder_of(path: pathlib.PurePath) -> str:
    """The loader of a file, by its name.

    Raises:
      ValueError: if the ending is not known.
    """
    suffixes = [s for s in path.suffixes if s.lower() not in _DECOMPRESSORS]
    builder = _BUILDER_OF_SUFFIX.get(suffixes[-1].lower()) if suffixes else None
    if builder is None:
        raise ValueError(
            f"The format of {str(path)!r} is not clear from its name; name it {', '.join(_BUILDER_OF_SUFFIX)} "
            f"(possibly with {', '.join(_DECOMPRESSORS)} behind), or give the source builder='json', 'parquet', "
            "'text', 'csv' or 'arrow', or a function that reads the rows of an open file."
        )
    return builder
