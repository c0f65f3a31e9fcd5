"""Small files that stand for more than a memory holds are read in parts, or are errors before that."""

import bz2
import gzip
import lzma
import os

import pyarrow as pa
import pyarrow.parquet
import pytest

from tasks.sources import arrow_tables, chunks, corpora
from tasks.sources.read_columns import arrow_columns, bounded_lines, line_tables, parquet_columns
from tasks.sources.remote_files import http_retries

MOST = 3 << 20
PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, "": bytes}
LINES = {"jsonl": b'{"text": "', "txt": b"", "csv": b"text\n"}


def _documents(file):
    source = corpora.HuggingFaceSource({"train": str(file)}, ["text"])
    return (document for some in source.documents("train") for document in some)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bounded_lines, "MOST_BYTES", MOST)
    monkeypatch.setattr(bounded_lines, "MOST_OF_LIST", 2 * MOST)


@pytest.mark.parametrize("pack", PACK)
@pytest.mark.parametrize("kind", LINES)
def test_a_line_without_an_end(kind, pack, tmp_path):
    file = tmp_path / f"bomb.{kind}{pack}"
    file.write_bytes(PACK[pack](LINES[kind] + b"a" * (8 * MOST)))
    with pytest.raises(
        http_retries.BrokenFileError, match=rf"bomb\.{kind}.* cannot be read .*line . has more than {MOST:,} bytes"
    ):
        list(_documents(file))


def test_a_text_of_parquet_that_is_too_long(tmp_path):
    for size in (MOST - 1, MOST + 1):
        pa.parquet.write_table(pa.table({"text": ["a", "a" * size]}), tmp_path / f"{size}.parquet", compression="zstd")
    assert len(list(_documents(tmp_path / f"{MOST - 1}.parquet"))) == 2
    words = rf"a text of column 'text' has {MOST + 1:,} bytes; at most {MOST:,} are read"
    with pytest.raises(http_retries.BrokenFileError, match=words):
        list(_documents(tmp_path / f"{MOST + 1}.parquet"))


@pytest.mark.parametrize("kind", ["dictionary.parquet", "DELTA_BYTE_ARRAY.parquet", "dictionary.arrow"])
def test_a_long_text_of_many_rows_is_decoded_for_few_at_a_time(kind, tmp_path, monkeypatch):
    """10 kB of such a file stood for 100 GB, which one table of 1,000 rows had."""
    monkeypatch.setattr(arrow_columns, "MOST_BYTES", 2**20)
    monkeypatch.setattr(parquet_columns, "_TABLE_BYTES", 2**18)
    file, text = tmp_path / kind, "x" * 2**18
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 99, pa.int32()), [text])
    if kind.endswith(".arrow"):
        table = pa.table({"text": column})
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    elif kind.startswith("dictionary"):
        pa.parquet.write_table(pa.table({"text": column}), file, compression="zstd")
    else:
        table = pa.table({"text": [text] * 99})
        pa.parquet.write_table(table, file, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    tables = arrow_tables.Tables([arrow_tables.local_shard(file)], None, {}, ["text"])
    found = [table.num_rows for table in tables._open(0, 64)[1]]
    assert sum(found) == 99 and max(found) <= 4


def test_many_long_texts_are_not_read_together(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "MOST_BYTES", 2 * MOST)
    file = tmp_path / "long.txt"
    for lines in (2, 30):
        file.write_text("\n".join(["a" * (MOST - 2**20)] * lines))
        if lines == 2:
            assert len(list(_documents(file))) == lines
    with pytest.raises(
        http_retries.BrokenFileError, match=r"rows 0 to 4 have more than 6,291,456 bytes, and rows 0 to"
    ):
        list(_documents(file))


def test_a_reader_holds_only_its_own_rows(tmp_path, monkeypatch):
    """Where several readers share a file, each has one of eight rows, and holds no others."""
    monkeypatch.setattr(chunks, "MOST_BYTES", 2 * MOST)
    file = tmp_path / "long.txt"
    file.write_text("\n".join(f"{n}" + "a" * 2**20 for n in range(32)))
    source = corpora.HuggingFaceSource({"train": str(file)}, ["text"])
    found = source.chunks_of("train", False, 0, reader=3, num_readers=8).documents(1)
    rows = [text for some in found for text in some.columns["text"]]
    assert [int(text.rstrip(b"a")) for text in rows] == [3, 11, 19, 27]


def test_rows_of_csv_that_are_parsed_together(tmp_path, monkeypatch):
    monkeypatch.setattr(bounded_lines, "MOST_OF_ROWS", 2 * MOST)
    file = tmp_path / "long.csv"
    for rows in (3, 9):
        file.write_text("text\n" + ("a" * 2**20 + "\n") * rows)
        if rows == 3:
            assert len(list(_documents(file))) == rows
    with pytest.raises(http_retries.BrokenFileError, match=r"long\.csv .*10,000 rows, .* more than 6,291,456"):
        list(_documents(file))


def test_lines_of_some_length_are_read(tmp_path):
    file = tmp_path / "long.txt"
    file.write_text("\n".join("a" * (MOST - 2**20) for _ in range(5)))
    assert [len(document["text"]) for document in _documents(file)] == [MOST - 2**20] * 5
    # A table ends where it has enough, whatever the number of rows is.
    assert max(t.num_rows for t in line_tables.of_text(file.open("rb"), 1024)) == 5


def test_a_list_that_is_too_long(tmp_path):
    file = tmp_path / "list.json"
    row = '{"text": "' + "a" * 1000 + '"}'
    file.write_text("[" + ", ".join([row] * 4000) + "]")  # A line above the limit of one, and below that of a list.
    assert sum(1 for _ in _documents(file)) == 4000
    file.write_text("[" + ",\n".join([row] * 20_000) + "]")
    with pytest.raises(
        http_retries.BrokenFileError, match=r"its list of rows has more than [\d,]+ bytes; write it as lines of JSON"
    ):
        list(_documents(file))


def test_a_file_with_holes(tmp_path):
    for name in ("holes.jsonl", "holes.txt", "holes.csv"):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 20 * 2**30)  # Without a byte on the disk.
        with pytest.raises(http_retries.BrokenFileError, match="it is not a text file: it has many bytes"):
            list(_documents(tmp_path / name))


def test_what_is_no_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo.jsonl")
    (tmp_path / "device.txt").symlink_to("/dev/zero")
    for name, what in (("fifo.jsonl", "a FIFO"), ("device.txt", "a device")):
        with pytest.raises(ValueError, match=rf"{name} is {what}, not a file"):
            list(_documents(tmp_path / name))
    (tmp_path / "holes.jsonl.xz").touch()
    os.truncate(tmp_path / "holes.jsonl.xz", 20 * 2**30)
    with pytest.raises(http_retries.BrokenFileError, match=r"it is not compressed: rename it without \.xz"):
        list(_documents(tmp_path / "holes.jsonl.xz"))


def test_a_small_file_of_many_rows_is_not_kept(tmp_path, monkeypatch):
    """Parquet has a text once for all rows that have it."""
    monkeypatch.setattr(arrow_tables, "_KEPT_BYTES", 2**20)
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), pa.array(["x" * 10_000]))
    pa.parquet.write_table(pa.table({"text": rows}), tmp_path / "bomb.parquet")
    assert (tmp_path / "bomb.parquet").stat().st_size < 2**15
    read = []
    parts = arrow_tables._read_parquet

    def counted(*arguments):
        begin, tables = parts(*arguments)
        return begin, (read.append(table.num_rows) or table for table in tables)

    monkeypatch.setattr(arrow_tables, "_read_parquet", counted)
    tables = arrow_tables.Tables([arrow_tables.local_shard(tmp_path / "bomb.parquet")], None, {}, ["text"])
    _, found = tables.open(0, 64)
    assert next(found).num_rows == 64 and sum(read) < 400  # Of 100 MB.
    assert next(_documents(tmp_path / "bomb.parquet"))["text"] == "x" * 10_000
