"""Columns of a Parquet file, of which some kilobytes may stand for any number of long texts."""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet

from limba.tasks.sources.read_columns import arrow_columns, bounded_lines

# That are decoded at once: the metadata may name sizes that the pages do not have.
_MOST_ROWS = 64
# With which a table ends.
_TABLE_BYTES = 1 << 25


def tables(
    file: pa.parquet.ParquetFile, columns: Sequence[str], batch_size: int, first_group: int = 0
) -> Iterator[pa.Table]:
    """The columns of an open file from a row group on, as tables of at most `batch_size` rows, or of few long ones.

    Raises:
      ValueError: for a text that is longer than a line may be.
    """
    for number in range(first_group, file.num_row_groups):
        found = file.metadata.row_group(number)
        chunks = [x for x in map(found.column, range(found.num_columns)) if x.path_in_schema in columns]
        most = min(batch_size, _MOST_ROWS)
        rows = arrow_columns.rows_at_once((chunk.total_uncompressed_size for chunk in chunks), most)
        for table in _together(file.iter_batches(rows, [number], columns), batch_size):
            for name, values in zip(table.column_names, table.columns, strict=True):
                _check_texts(name, values)
            yield table


def _together(batches: Iterable[pa.RecordBatch], most_rows: int) -> Iterator[pa.Table]:
    """Tables of at most `most_rows` rows, or of few long ones, made of small batches: each table costs much later."""
    some: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if any(map(pa.types.is_dictionary, batch.schema.types)):
            (batch,) = arrow_columns.decoded(batch.schema.names, batch.columns).to_batches()
        if some and rows + batch.num_rows > most_rows:
            yield pa.Table.from_batches(some)
            some, rows, size = [], 0, 0
        some.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size > _TABLE_BYTES:
            yield pa.Table.from_batches(some)
            some, rows, size = [], 0, 0
    if some:
        yield pa.Table.from_batches(some)


def _check_texts(column: str, values: pa.ChunkedArray) -> None:
    """Raises ValueError for a text that is longer than a line may be; a few kB of Parquet may stand for it."""
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if values.nbytes <= bounded_lines.MOST_BYTES or not is_text:
        return
    from pyarrow import compute  # Slow, and few corpora have such batches.

    longest = compute.max(compute.binary_length(values)).as_py() or 0
    if longest > bounded_lines.MOST_BYTES:
        raise ValueError(
            f"a text of column {column!r} has {longest:,} bytes; at most {bounded_lines.MOST_BYTES:,} are read"
        )
