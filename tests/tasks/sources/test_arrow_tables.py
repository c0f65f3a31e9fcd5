"""Tables of shards: those of a small corpus are read once."""

import json
import threading

import pyarrow as pa
import pyarrow.parquet
import pytest

from tasks.sources import arrow_tables, corpora
from tasks.sources.read_columns import line_tables


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Two shards, of 5 and 3 rows, and the shards that were opened."""
    for shard, rows in enumerate((5, 3)):
        lines = [json.dumps({"text": f"{shard} {row}", "n": row}) + "\n" for row in range(rows)]
        (tmp_path / f"{shard}.jsonl").write_text("".join(lines))
    made = arrow_tables.Tables(
        [arrow_tables.local_shard(tmp_path / f"{i}.jsonl") for i in range(2)], None, {}, ["text"]
    )
    opened, read = [], made._open
    monkeypatch.setattr(made, "_open", lambda shard, *others: opened.append(shard) or read(shard, *others))
    return made, opened


def _texts(tables, shard, first_row=0, batch_size=2):
    begin, read = tables.open(shard, batch_size, first_row)
    rows = [text for table in read for text in table.column("text").to_pylist()]
    return rows[first_row - begin :]


def test_a_small_corpus_is_read_once(tables):
    tables, opened = tables
    for _ in range(3):
        assert _texts(tables, 0) == [f"0 {row}" for row in range(5)]
        assert _texts(tables, 1, first_row=2) == ["1 2"]
    assert _texts(tables, 0, first_row=5) == []
    assert opened == [0, 1]
    assert [table.num_rows for table in tables.open(0, 2)[1]] == [2, 2, 1] and opened == [0, 1]


def test_the_beginning_of_a_small_file_of_json_is_read_with_the_rest_of_it(tables):
    tables, opened = tables
    assert tables.beginning(0).names == ["text", "n"] == tables.names(0)
    assert tables.beginning(0).schema.names == ["text"]
    assert _texts(tables, 0) == [f"0 {row}" for row in range(5)] and opened == [0]


def test_of_a_file_of_several_blocks_the_beginning_alone_is_read(tables, monkeypatch):
    tables, opened = tables
    monkeypatch.setattr(line_tables, "BLOCK", 20)
    assert tables.beginning(0).names == ["text", "n"] and tables._kept == {}
    assert _texts(tables, 0) == [f"0 {row}" for row in range(5)] and opened == [0, 0]


def test_a_file_without_rows_has_no_beginning(tmp_path):
    (tmp_path / "none.json").write_text("[]")
    tables = arrow_tables.Tables([arrow_tables.local_shard(tmp_path / "none.json")], None, {}, ["text"])
    assert tables.beginning(0) is None and tables.names(0) == []


def test_a_larger_one_is_not_kept_whoever_reads_it(tables, monkeypatch):
    """Its tables may turn out to be too large while several readers wait for them."""
    tables, opened = tables
    monkeypatch.setattr(arrow_tables, "_KEPT_BYTES", 1)
    found = []
    threads = [threading.Thread(target=lambda: found.append(_texts(tables, 0))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[f"0 {row}" for row in range(5)]] * 6
    assert opened == [0] * 7  # Once more, to see that they are too large: no more than that is read for it.


def test_what_lies_before_an_error_is_read_and_the_error_is_raised(tmp_path):
    def read(file):
        yield {"text": "a"}
        yield {"text": "b"}
        raise ValueError("broken here")

    (tmp_path / "own.txt").write_text("x")
    tables = arrow_tables.Tables([arrow_tables.local_shard(tmp_path / "own.txt")], read, {}, ["text"])
    for _ in range(2):
        rows = tables.open(0, 1)[1]
        assert [next(rows).num_rows, next(rows).num_rows] == [1, 1]
        with pytest.raises(ValueError, match="broken here"):
            next(rows)


def test_categories_of_parquet_are_their_values(tmp_path):
    """As pandas writes a column of its type category."""
    words = pa.array(["a", "b", None, "a"]).dictionary_encode()
    table = pa.table({"text": words, "n": pa.array([7, 9, 7, 7]).dictionary_encode(), "unused": words})
    pa.parquet.write_table(table, tmp_path / "categories.parquet")
    source = corpora.HuggingFaceSource({"train": tmp_path / "categories.parquet"}, columns=["text", "n"])
    documents = [document for some in source.documents("train") for document in some]
    assert documents == [{"text": text, "n": n} for text, n in (("a", 7), ("b", 9), (None, 7), ("a", 7))]
    shard = arrow_tables.local_shard(tmp_path / "categories.parquet")
    tables = arrow_tables.Tables([shard], None, {}, ["text", "n"])
    assert [str(kind) for kind in tables.beginning(0).schema.types] == ["string", "int64"]
    (read,) = tables.open(0, 9)[1]
    assert read.schema.types == tables.beginning(0).schema.types


def test_a_start_glances_at_the_files_of_a_large_corpus(tmp_path, monkeypatch):
    """A file costs the same, however large it is; a column that only later rows have is no fault, one of lists is."""
    monkeypatch.setattr(arrow_tables, "_KEPT_FILES", 0)
    row = {"text": "a" * 99, "n": 1}
    rows = [[row] * 9000, [row] * 9000, [{}] * 30_000 + [row]]
    for number, of_file in enumerate(rows):
        (tmp_path / f"{number}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in of_file))
    files = {"train": [str(tmp_path / f"{number}.jsonl") for number in range(3)]}
    parsed, parse = [], line_tables._parsed
    monkeypatch.setattr(line_tables, "_parsed", lambda block: parsed.append(len(block)) or parse(block))
    corpora.HuggingFaceSource(files, ["text"]).check("train")
    # The first file decides on the types; the last is looked at again.
    assert len(parsed) == 4 and parsed[0] > 900_000 and max(parsed[1:3]) < 20_000 and parsed[3] > 80_000
    (tmp_path / "1.jsonl").write_text(json.dumps({"text": [1]}) + "\n" + json.dumps(row) * 9)
    with pytest.raises(ValueError, match=r"1\.jsonl"):
        corpora.HuggingFaceSource(files, ["text"]).check("train")
