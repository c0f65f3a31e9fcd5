"""Files whose content is not what their name says: one sentence with the remedy."""

import bz2
import gzip
import lzma
import random

import pyarrow as pa
import pytest

from tasks.sources import corpora
from tasks.sources.remote_files import http_files

LINES = "".join(f"A sentence with the number {number}.\n" for number in range(3000)).encode()
RANDOM = random.Random(0).randbytes(2000)


def _parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(pa.table({"text": ["one", "two"]}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt.gz", LINES, "it is not compressed: rename it without .gz."),
        ("a.txt.zst", LINES, "it is not compressed: rename it without .zst."),
        ("a.txt.xz", LINES, "it is not compressed: rename it without .xz."),
        ("a.txt.gz", bz2.compress(LINES), "it is a file of the format bz2: rename it, with .bz2 in place of .gz."),
        ("a.txt.gz", gzip.compress(LINES)[:2000], "its compressed data are cut off or damaged. Copy or download"),
        ("a.txt.xz", lzma.compress(LINES)[:1000], "its compressed data are cut off or damaged. Copy or download"),
        ("a.txt", gzip.compress(LINES), "it is a file of the format gz: rename it, with .gz behind its name."),
        ("a.jsonl", _parquet(), "it is a file of the format parquet: rename it, with .parquet as its ending."),
        ("a.parquet", RANDOM, "it is not a Parquet file: name it for the format that it has"),
        ("a.parquet", _parquet()[:-20], "its end is missing. Copy or download the file again."),
        ("a.txt", RANDOM, "it is not a text file: it has many bytes that no text has."),
        ("a.jsonl", RANDOM, "it is not a text file: it has many bytes that no text has."),
        ("a.txt", "ä text".encode("utf-16"), "line 1 is UTF-16, not UTF-8: byte 0xff at column 1. Save it as"),
    ],
)
def test_what_the_file_is_instead(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(http_files.BrokenFileError) as caught:
        list(corpora.HuggingFaceSource({"train": str(tmp_path / name)}).documents("train"))
    assert str(caught.value).startswith(f"Shard {tmp_path / name} cannot be read from row ")
    assert f" on: {words}" in str(caught.value)


def test_a_later_file_is_described_too(tmp_path):
    (tmp_path / "a.txt").write_bytes(LINES)
    (tmp_path / "b.txt").write_bytes(RANDOM)
    source = corpora.HuggingFaceSource({"train": f"{tmp_path}/*.txt"})
    with pytest.raises(ValueError, match=r"b\.txt cannot be read.*: it is not a text file: it has many"):
        source.check("train")


@pytest.mark.parametrize(
    ("name", "packed"), [("a.txt", False), ("a.txt.gz", True), ("a.jsonl", False), ("a.csv", False)]
)
def test_a_byte_order_mark_is_no_part_of_the_first_document(tmp_path, name, packed):
    text = {"txt": "one\ntwo\n", "jsonl": '{"text": "one"}\n{"text": "two"}\n', "csv": "text,n\none,1\ntwo,2\n"}
    content = text[name.split(".")[1]].encode("utf-8-sig")
    (tmp_path / name).write_bytes(gzip.compress(content) if packed else content)
    documents = corpora.HuggingFaceSource({"train": str(tmp_path / name)}).documents("train")
    assert [document["text"] for batch in documents for document in batch] == ["one", "two"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.parquet", "a.txt.gz"])
def test_a_pointer_of_git_lfs_is_no_text(name, tmp_path):
    """As a .txt file it would be three lines to train on."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    (tmp_path / name).write_text(pointer)
    (tmp_path / "b.txt").write_text(pointer[8:])
    with pytest.raises(ValueError, match=f"{name} is only git-lfs's pointer to the file; run `git lfs pull` in its"):
        corpora.HuggingFaceSource({"train": str(tmp_path / name)}).check("train")
    corpora.HuggingFaceSource({"train": str(tmp_path / "b.txt")}).check("train")
