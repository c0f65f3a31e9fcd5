"""Columns of Arrow's IPC files: streams, as `datasets` writes them (`save_to_disk`), and files with a footer."""

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa

_FILE = b"ARROW1"
# Of the texts of rows that are decoded at once; fewer rows than these would take much longer.
MOST_BYTES, _LEAST_ROWS = 2**30, 4


def tables(file: BinaryIO, columns: Sequence[str], names: dict[str, None], batch_size: int) -> Iterator[pa.Table]:
    """The columns of an open file, as tables of at most `batch_size` rows; all names go into `names`.

    Raises:
      ValueError: if a column is missing, or the file is damaged.
    """
    with file:
        schema, batches = _opened(file)
        names.update(dict.fromkeys(schema.names))
        if missing := [column for column in columns if column not in schema.names]:
            raise ValueError(f"no columns {missing}, only {schema.names}")
        for batch in batches:
            batch.validate(full=True)  # Arrow follows offsets of a damaged file to memory of others.
            arrays = [batch.column(name) for name in columns]
            rows = rows_at_once((x.dictionary.nbytes for x in arrays if pa.types.is_dictionary(x.type)), batch_size)
            for row in range(0, batch.num_rows, rows):
                yield decoded(columns, [array.slice(row, rows) for array in arrays])


def rows_at_once(sizes: Iterable[int], at_most: int) -> int:
    """How many rows are decoded at once where a text may have `sizes` bytes: it stands once for all that have it."""
    return min(at_most, max(_LEAST_ROWS, MOST_BYTES // max(1, *sizes, 1)))


def decoded(names: Sequence[str], arrays: Sequence[pa.Array]) -> pa.Table:
    """A table of these columns, dictionaries as what they stand for."""
    return pa.table([x.dictionary_decode() if pa.types.is_dictionary(x.type) else x for x in arrays], names=list(names))


def schema(file: BinaryIO) -> pa.Schema:
    """Of an open file; no row is read."""
    with file:
        return _opened(file)[0]


def _opened(file: BinaryIO) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    begin = file.read(len(_FILE))
    file.seek(0)
    if begin != _FILE:
        stream = pa.ipc.open_stream(file)
        return stream.schema, iter(stream)
    whole = pa.ipc.open_file(file)
    return whole.schema, map(whole.get_batch, range(whole.num_record_batches))
