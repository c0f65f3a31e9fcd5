"""Columns of Arrow's IPC files: streams, as `datasets` writes them (`save_to_disk`), and files with a footer."""

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa

_FILE = b"ARROW1"


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
            arrays = [x.dictionary_decode() if pa.types.is_dictionary(x.type) else x for x in arrays]
            table = pa.table(arrays, names=list(columns))
            yield from (table.slice(row, batch_size) for row in range(0, batch.num_rows, batch_size))


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
