"""Files of JSON, and of text with a document in each line, as Arrow tables.

They are read as the loaders of Hugging Face's `datasets` read them without options; its import takes a second.
"""

import codecs
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.json

from limba.files import json_text, untrusted_json
from limba.tasks.sources.read_columns import bounded_lines, json_columns

# Bytes that are parsed at a time. The first block of a file decides on the types of its columns.
BLOCK = 10 << 20


def of_json(file: BinaryIO, columns: Sequence[str], names: dict[str, None], batch_size: int) -> Iterator[pa.Table]:
    """Tables of at most `batch_size` rows of a file with a row in each line, or with one list of rows.

    A list of texts has them in the column `text`.

    Args:
      columns: that are read; a row that lacks one has null there.
      names: gets the names of all columns.

    Raises:
      ValueError: for what is neither, and for a column with values of several types.
    """
    schema: pa.Schema | None = None
    with json_columns.only_columns(untrusted_json.guarded(file), columns, names) as rows:
        while block := rows.read(BLOCK):
            block = block.removeprefix(codecs.BOM_UTF8) if schema is None else block
            block = _lines(block + _rest(rows)) if block.startswith(b"[") else block + rows.readline()
            if not block:  # an empty list
                return
            table = _parsed(block)
            schema = schema or table.schema
            table = table if table.schema == schema else table.select(schema.names).cast(schema)
            yield from (table.slice(row, batch_size) for row in range(0, table.num_rows, batch_size))


def _rest(rows: BinaryIO) -> bytes:
    """What follows of a list of rows, which is parsed as a whole."""
    content = rows.read(bounded_lines.MOST_OF_LIST)
    if rows.read(1):
        most = f"{bounded_lines.MOST_OF_LIST:,}"
        raise ValueError(f"its list of rows has more than {most} bytes; write it as lines of JSON, a row in each")
    return content


def _parsed(block: bytes) -> pa.Table:
    """The rows of some lines. Arrow takes texts that are all dates for times; they stay texts."""
    # Threads of Arrow's cost more than a small block does.
    options = pa.json.ReadOptions(use_threads=len(block) > 1 << 20, block_size=len(block) + 1)
    table = pa.json.read_json(pa.BufferReader(block), options)
    if times := [field.name for field in table.schema if pa.types.is_timestamp(field.type)]:
        texts = pa.json.ParseOptions(explicit_schema=pa.schema([(name, pa.string()) for name in times]))
        table = pa.json.read_json(pa.BufferReader(block), options, texts).select(table.column_names)
    return table


def _lines(content: bytes) -> bytes:
    """A list of rows or of texts as lines."""
    rows: list[Any] = json.loads(content)
    if len({isinstance(row, dict) for row in rows}) > 1:
        raise ValueError("in its list are rows and what are not rows")
    return "".join(json_text.dumps(row if isinstance(row, dict) else {"text": row}) + "\n" for row in rows).encode()


def of_text(file: BinaryIO, batch_size: int) -> Iterator[pa.Table]:
    """Tables of at most `batch_size` lines, and of about `BLOCK` characters, in the column `text`."""
    with io.TextIOWrapper(file, "utf-8-sig") as lines:
        batch, size = [], 0
        for line in lines:
            batch.append(line.removesuffix("\n"))
            size += len(line)
            if len(batch) == batch_size or size > BLOCK:
                yield pa.table({"text": pa.array(batch, pa.string())})
                batch, size = [], 0
        if batch:
            yield pa.table({"text": pa.array(batch, pa.string())})
