"""A column that nobody reads cannot stop a corpus, whatever is in it; one that is read keeps its error."""

import csv
import itertools
import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from tasks.sources import corpora
from tasks.sources.remote_files import http_files
from tests.loopback_hub import LoopbackHub

MISSING = object()
VALUES = {
    "int": 1, "big": 10**30, "float": 0.5, "text": "x", "date": "2020-01-01 00:00:00", "null": None, "bool": True,
    "list": [1, 2], "empty list": [], "object": {"a": 1}, "other object": {"a": "x", "b": [{"c": 1}]},
    "missing": MISSING,
}  # fmt: skip
ROWS = 5
FORMATS = ["jsonl", "json", "csv", "parquet"]


def _rows(kind, begin):
    meta = {} if VALUES[kind] is MISSING else {"meta": VALUES[kind]}
    return [{"n": i, **meta, "text": f"text ș {i}"} for i in range(begin, begin + ROWS)]


def _write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)


def _texts(source):
    """Each way to read a split gives the same texts."""
    source.check("train")
    found = [document["text"] for _, _, document in source.numbered_documents("train")]
    chunks = source.chunks_of("train", False, 0).documents(1)
    assert [text.decode() for chunk in chunks for text in chunk.columns["text"]] == found
    assert sorted(document["text"] for part in source.documents("train") for document in part) == sorted(found)
    return found


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_type_changes_between_files(tmp_path, suffix):
    """A walk over all types, in two orders: of two neighbours each is the first once."""
    kinds = [kind for kind in VALUES if suffix != "parquet" or kind != "big"]
    for name, order in (("a", kinds), ("b", kinds[::-1]), ("c", kinds[::5] + kinds[1::5] + kinds[2::5])):
        files = [tmp_path / f"{name}{number:02d}.{suffix}" for number in range(len(order))]
        for number, (file, kind) in enumerate(zip(files, order, strict=True)):
            _write(file, _rows(kind, number * ROWS))
        source = corpora.HuggingFaceSource({"train": str(tmp_path / f"{name}*.{suffix}")}, ["text", "n"])
        assert _texts(source) == [f"text ș {i}" for i in range(len(order) * ROWS)]


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv"])
def test_the_type_changes_between_rows(tmp_path, suffix):
    for number, kinds in enumerate(
        itertools.permutations(["int", "object", "empty list", "big", "text", "missing"], 2)
    ):
        if suffix == "csv" and "missing" in kinds:
            continue
        file = tmp_path / f"{number}.{suffix}"
        _write(file, [*_rows(kinds[0], 0), *_rows(kinds[1], ROWS)])
        assert _texts(corpora.HuggingFaceSource({"train": str(file)})) == [f"text ș {i}" for i in range(2 * ROWS)]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_the_type_changes_between_blocks(tmp_path, suffix):
    """Of 10 MB in JSON, of 10,000 rows in csv."""
    text = "ș" * 150
    kinds = ["int", "text"] if suffix == "csv" else ["int", "object", "text"]
    rows = [{"meta": VALUES[kind], "text": f"{text} {i}"} for kind in kinds for i in range(14_000)]
    _write(tmp_path / f"x.{suffix}", rows)
    source = corpora.HuggingFaceSource({"train": str(tmp_path / f"x.{suffix}")})
    found = [document["text"] for _, _, document in source.numbered_documents("train")]
    assert found == [row["text"] for row in rows]


@pytest.mark.parametrize("suffix", FORMATS)
def test_on_the_hub(monkeypatch, tmp_path, suffix):
    hub = LoopbackHub()
    hub.use(monkeypatch, tmp_path / "home")
    (tmp_path / "corpus").mkdir()
    for number, kind in enumerate(("int", "empty list", "object", "missing", "text")):
        _write(tmp_path / f"corpus/train-{number}.{suffix}", _rows(kind, number * ROWS))
    hub.add("org/mixed", tmp_path / "corpus")
    source = corpora.HubSource("org/mixed", columns=["text"], data_files={"train": f"train-*.{suffix}"})
    assert _texts(source) == [f"text ș {i}" for i in range(5 * ROWS)]


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_file_without_a_column_that_is_read_is_named(tmp_path, suffix):
    _write(tmp_path / f"0.{suffix}", _rows("int", 0))
    _write(tmp_path / f"1.{suffix}", [{"txt": "a", "n": 1}, {"txt": "b", "n": 2}])
    source = corpora.HuggingFaceSource({"train": str(tmp_path / f"*.{suffix}")})
    with pytest.raises(ValueError, match=rf"1\.{suffix} cannot be read with the columns \['text'\] like the other"):
        source.check("train")
    alone = corpora.HuggingFaceSource({"train": str(tmp_path / f"1.{suffix}")})
    with pytest.raises(
        ValueError, match=r"There is no column 'text' in .* The columns are 'txt', 'n'; did you mean 'txt'"
    ):
        alone.check("train")


def test_a_column_that_is_read_keeps_its_error(tmp_path):
    rows = [*_rows("int", 0), *_rows("object", ROWS)]
    _write(tmp_path / "x.jsonl", rows)
    source = corpora.HuggingFaceSource({"train": str(tmp_path / "x.jsonl")}, ["text", "meta"])
    with pytest.raises(
        http_files.BrokenFileError,
        match=r"x\.jsonl cannot be read from row 0 on: line 6 has an object as 'meta', .* and line 1 a number",
    ):
        source.check("train")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("order", ["ab", "ba", "aa"])
def test_a_column_of_nulls_has_the_type_of_the_other_files(tmp_path, suffix, order):
    """Whichever file is the first; where all have only nulls, its texts are empty."""
    values = {"a": [None, None], "b": ["x", None]}
    for number, name in enumerate(order):
        _write(tmp_path / f"{number}.{suffix}", [{"n": 1, "text": value} for value in values[name]])
    source = corpora.HuggingFaceSource({"train": str(tmp_path / f"*.{suffix}")}, ["text", "n"])
    source.check("train")
    expected = [value for name in order for value in values[name]]
    assert [document["text"] for _, _, document in source.numbered_documents("train")] == expected
    rows = [text for chunk in source.chunks_of("train", False, 0).documents(1) for text in chunk.columns["text"]]
    assert rows == [(value or "").encode() for value in expected]
