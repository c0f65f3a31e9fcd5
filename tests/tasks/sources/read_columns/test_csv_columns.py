"""Rows of csv and tsv that pandas reads without a word, and not as they were meant."""

import pytest

from tasks.sources import corpora
from tasks.sources.read_columns import csv_columns
from tasks.sources.remote_files import http_files


def _source(path, content):
    path.write_bytes(content)
    return corpora.HuggingFaceSource({"train": str(path)}, ("text", "mood"))


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    source = _source(tmp_path / "a.csv", b"\xef\xbb\xbftext,mood,text\r\nein,sad,zwei\r\n")
    with pytest.raises(http_files.BrokenFileError, match="the header has 'text' twice; rename one"):
        source.check("train")
    # Such a name may be the file's own, and columns that nobody reads may be anything.
    source = _source(tmp_path / "b.csv", b"text,text.1,mood,x,x\nein,zwei,sad,1,2\n")
    assert [row for _, _, row in source.numbered_documents("train")] == [{"text": "ein", "mood": "sad"}]


def test_a_quote_that_takes_in_rows_of_tsv_is_told_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(csv_columns, "_warned", set())
    source = _source(tmp_path / "a.tsv", b'text\tmood\nein\tglad\n"zwei\tsad\ndrei "vier\tglad\n')
    for _ in range(2):
        texts = [row["text"] for _, _, row in source.numbered_documents("train")]
    assert texts == ["ein", "zwei\tsad\ndrei vier"]
    (warning,) = caplog.messages
    assert f"{tmp_path}/a.tsv: row 1 (the first is 0) has a tab and a line break" in warning
    caplog.clear()
    source = _source(tmp_path / "b.tsv", b'text\tmood\n"ein\nzwei"\tsad\n"drei ""vier"""\tglad\n')
    assert [row["text"] for _, _, row in source.numbered_documents("train")] == ["ein\nzwei", 'drei "vier"']
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (
            b"text,mood" + b",x" * 6000,
            "its header has 6,002 columns, of which 5,999 are called like others; rename them",
        ),
        (b"text,mood," + b"y" * 2**20, "its first line, the header, has more than 1,048,576 bytes"),
        (b"text;" + b"y" * 200, r"There is no column 'text' in .*: its header 'text;y{55}…' is separated by ';'"),
    ],
)
def test_a_header_that_pandas_would_read_for_minutes(header, words, tmp_path):
    source = _source(tmp_path / "a.csv", header + b"\n" + b"1\n" * 3)
    with pytest.raises((ValueError, http_files.BrokenFileError), match=words):
        source.check("train")
    # As many columns of different names are read.
    names = b",".join(b"x%d" % i for i in range(6000))
    source = _source(tmp_path / "b.csv", b"text,mood," + names + b"\nein,sad" + b"," * 6000 + b"\n")
    assert [row for _, _, row in source.numbered_documents("train")] == [{"text": "ein", "mood": "sad"}]
