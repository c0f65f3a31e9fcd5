"""Readers of files of strangers: what one row holds ends no task, and no row is larger than a line may be.

datatrove's own end a task at a row that is no table, at a column `media` of another kind, and at a page without an
address; and they hold a line whole, for which some compressed kilobytes may stand.
"""

import contextlib
import csv
import io
from collections.abc import Iterator
from typing import Any, TextIO

import pyarrow.parquet
from datatrove.data import Document
from datatrove.pipeline.readers import CSVReader, WarcReader
from datatrove.pipeline.readers.base import BaseDiskReader
from datatrove.pipeline.readers.warc import process_record
from datatrove.utils.logging import logger

from limba.files.untrusted_files import cut
from limba.tasks.sources.read_columns import bounded_lines, parquet_columns

# What a document keeps beside its text: where it comes from.
KEPT = ("url", "date")
# Of a table of Parquet.
_ROWS = 1000


class LinesReader(BaseDiskReader):
    """Text files with a document a line, as Limba reads them everywhere; datatrove has no reader of these."""

    name = "Lines"

    def read_file(self, filepath: str) -> Iterator[Document]:
        with _opened(self, filepath) as file:
            for number, line in enumerate(file):
                try:
                    document = self.get_document_from_dict(self.row(line), filepath, number)
                except ValueError as error:
                    _count(filepath, error)
                    continue
                if document:
                    yield document

    def row(self, line: str) -> dict[str, Any]:
        """The columns of a line. Raises ValueError for one that has none."""
        line.encode()  # Bytes that are no UTF-8 are half characters here.
        return {self.text_key: line.rstrip("\r\n")}


class RowsReader(LinesReader):
    """JSON lines."""

    name = "JSON lines"

    def row(self, line: str) -> dict[str, Any]:
        import orjson

        row = orjson.loads(line)
        if not isinstance(row, dict):
            raise ValueError("a row is no table of columns")
        return row


class ParquetReader(BaseDiskReader):
    """Parquet. datatrove's own decodes 1,000 rows of all columns at once, for which some kilobytes may stand."""

    name = "Parquet"

    def read_file(self, filepath: str) -> Iterator[Document]:
        number = 0
        with self.data_folder.open(filepath, "rb") as file, pyarrow.parquet.ParquetFile(file) as opened:
            columns = [name for name in (self.text_key, *KEPT) if name in opened.schema_arrow.names]
            for table in parquet_columns.tables(opened, columns, _ROWS) if columns else ():
                for row in table.to_pylist():
                    document = self.get_document_from_dict(row, filepath, number)
                    if document:
                        number += 1
                        yield document


class TableReader(CSVReader):
    """CSV."""

    def read_file(self, filepath: str) -> Iterator[Document]:
        csv.field_size_limit(bounded_lines.MOST_BYTES)  # Python's 131,072 characters are less than a book has.
        with _opened(self, filepath) as file:
            rows = enumerate(csv.DictReader(file))
            while True:
                try:
                    number, row = next(rows)
                    "".join(filter(None, (row.get(key) for key in (self.text_key, "url", "date")))).encode()
                    document = self.get_document_from_dict(row, filepath, number)
                except StopIteration:
                    return
                except (csv.Error, UnicodeEncodeError) as error:
                    _count(filepath, error)
                    continue
                if document:
                    yield document


class PagesReader(WarcReader):
    """WARC."""

    def read_file(self, filepath: str) -> Iterator[Document]:
        with self.data_folder.open(filepath, "rb", compression=self.compression) as file:
            for number, record in enumerate(_records(file)):
                try:
                    page = process_record(_Page(record))
                    document = self.get_document_from_dict(page, filepath, number) if page else None
                except (KeyError, ValueError) as error:
                    _count(filepath, error)
                    continue
                if document:
                    yield document


def _records(file: Any) -> Iterator[Any]:
    from warcio.archiveiterator import ArchiveIterator

    number = 0
    try:
        for record in ArchiveIterator(file):
            number += 1
            yield record
    except Exception as error:
        what = f"record {number + 1} is damaged ({cut(str(error)) or type(error).__name__})"
        raise ValueError(f"{what}; cut the file off before it, or leave it out") from error


class _Page:
    """A record whose content is read up to a limit: a server may send what unpacks to terabytes."""

    def __init__(self, record: Any) -> None:
        self.rec_type, self.rec_headers = record.rec_type, record.rec_headers
        self._content = record.content_stream()

    def content_stream(self) -> io.BytesIO:
        """The whole content. Raises ValueError if it is larger than a line may be."""
        content, most = io.BytesIO(), bounded_lines.MOST_BYTES
        while piece := self._content.read(1 << 20):
            if content.tell() + len(piece) > most:
                raise ValueError(f"a page has more than {most:,} bytes")
            content.write(piece)
        content.seek(0)
        return content


@contextlib.contextmanager
def _opened(reader: BaseDiskReader, path: str) -> Iterator[TextIO]:
    with reader.data_folder.open(path, "rb", compression="infer") as packed:
        yield io.TextIOWrapper(bounded_lines.bounded(packed), encoding="utf-8", errors="surrogateescape")


def _count(path: str, error: Exception) -> None:
    """As datatrove's readers say it, for `stage_runs.skipped`."""
    what = "it is no UTF-8" if isinstance(error, UnicodeEncodeError) else str(error)
    logger.warning(f"Error when reading `{path}`: {cut(what)}")
