import collections
import csv
import gzip
import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet
import pytest

from tasks.sources import chunks, corpora
from tasks.sources.remote_files import http_files
from tests import house


def read(source, split="train", num_readers=1, reader=0, shuffle=True, seed=None, num_epochs=1):
    """The documents of a reader, one by one."""
    chunks_read = source.chunks_of(split, shuffle, seed, reader, num_readers).documents(num_epochs)
    return [
        {"document": chunk.document[i], **{name: column[i] for name, column in chunk.columns.items()}}
        for chunk in chunks_read
        for i in range(len(chunk.document))
    ]


@pytest.mark.parametrize("num_readers", [1, 2, 3, 4, 16])
def test_every_document_once_per_epoch(data_files, num_readers, make_document, places):
    source = corpora.HuggingFaceSource(data_files, ["text", "n"], chunk_documents=8)
    seen = collections.Counter()
    for reader in range(num_readers):
        mine = 0
        for example in read(source, num_readers=num_readers, reader=reader, shuffle=True, seed=1, num_epochs=2):
            epoch, shard, row = example["document"].tolist()
            assert example["text"].decode() == make_document(shard, row)["text"]
            assert example["n"] == row
            seen[epoch, shard, row] += 1
            mine += 1
        assert mine > 0
    assert seen == collections.Counter({(epoch, *place): 1 for epoch in (0, 1) for place in places})


def test_order(data_files, places):
    source = corpora.HuggingFaceSource(data_files, chunk_documents=8)
    order = [tuple(e["document"].tolist()) for e in read(source, shuffle=True, seed=1, num_epochs=2)]
    first, second = order[:200], order[200:]
    assert {p[0] for p in first} == {0} and {p[0] for p in second} == {1}
    assert [p[1:] for p in first] != [p[1:] for p in second]
    assert order == [tuple(e["document"].tolist()) for e in read(source, shuffle=True, seed=1, num_epochs=2)]
    assert order[:200] != [tuple(e["document"].tolist()) for e in read(source, shuffle=True, seed=2)]
    in_order = [tuple(e["document"].tolist()[1:]) for e in read(source, shuffle=False)]
    assert in_order == sorted(places)


@pytest.mark.parametrize("num_readers", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("sizes", [[100] * 16, [1000, 1, 1], [40, 3, 25, 60, 17, 31, 24], [10]])
def test_pieces_are_disjoint_complete_and_balanced(sizes, num_readers):
    readers = chunks.split_shards(sizes, num_readers)
    stripes = collections.Counter(
        (piece.shard, row) for pieces in readers for piece in pieces for row in range(piece.offset, 64, piece.step)
    )
    assert stripes == collections.Counter({(shard, row): 1 for shard in range(len(sizes)) for row in range(64)})
    loads = [sum(sizes[piece.shard] / piece.step for piece in pieces) for pieces in readers]
    assert max(loads) <= 1.05 * sum(sizes) / num_readers + 1e-6


def test_shards_stay_whole_where_that_balances():
    assert all(piece.step == 1 for pieces in chunks.split_shards([100] * 16, 8) for piece in pieces)


def test_formats(tmp_path, make_document, write_jsonl):
    documents = [make_document(0, row) for row in range(20)]
    texts = [document["text"] for document in documents]
    write_jsonl(tmp_path / "a.jsonl", documents)
    with gzip.open(tmp_path / "b.json.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(document) + "\n" for document in documents)
    pa.parquet.write_table(pa.Table.from_pylist(documents), tmp_path / "c.parquet", row_group_size=6)
    with pa.CompressedOutputStream(str(tmp_path / "f.jsonl.zst"), "zstd") as file:
        file.write((tmp_path / "a.jsonl").read_bytes())
    with gzip.open(tmp_path / "g.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(texts))
    (tmp_path / "d.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    with (tmp_path / "e.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["text", "n"])
        writer.writeheader()
        writer.writerows(documents)
    for name in ("a.jsonl", "b.json.gz", "c.parquet", "d.txt", "e.csv", "f.jsonl.zst", "g.txt.gz"):
        source = corpora.HuggingFaceSource({"train": tmp_path / name}, chunk_documents=7)
        assert [e["text"].decode() for e in read(source, shuffle=False)] == texts, name


def test_documents_reads_all_shards_without_tensorflow(data_files, make_document, places):
    source = corpora.HuggingFaceSource(data_files, ["text", "n"])
    texts = [document["text"] for documents in source.documents("train", 8) for document in documents]
    assert sorted(texts) == sorted(make_document(*place)["text"] for place in places)
    assert texts[0].startswith("shard 0") and texts[8].startswith("shard 1")


def test_errors(data_files, tmp_path, make_document, write_jsonl):
    with pytest.raises(FileNotFoundError, match=r"There is no file '.*missing\.jsonl' \(split 'train'.*Look here"):
        corpora.HuggingFaceSource({"train": str(tmp_path / "missing.jsonl")}, hint="Look here.").check("train")
    with pytest.raises(
        FileNotFoundError, match=r"is a folder \(split 'train'\); name its files, such as '.*/\*\.jsonl'"
    ):
        corpora.HuggingFaceSource({"train": f"{tmp_path}/"}).check("train")
    lists = {"train": write_jsonl(tmp_path / "lists.jsonl", [{"text": ["a", "b"]}])}
    with pytest.raises(ValueError, match=r"'text' has the type list<.*It is in split 'train', files '.*lists\.jsonl'"):
        corpora.HuggingFaceSource(lists).check("train")
    mixed = {"train": write_jsonl(tmp_path / "mixed.jsonl", [{"text": "a"}, {"text": 5}])}
    with pytest.raises(
        http_files.BrokenFileError, match=r"line 2 has a number as 'text', 5, and line 1 a text\. The val"
    ):
        corpora.HuggingFaceSource(mixed).check("train")
    with pytest.raises(FileNotFoundError, match="No file matches the pattern"):
        corpora.HuggingFaceSource({"train": str(tmp_path / "nothing-*.jsonl")}).check("train")
    with pytest.raises(ValueError, match=r"no column 'txt'.*'text', 'n'; did you mean 'text'"):
        corpora.HuggingFaceSource(data_files, ["txt"]).check("train")
    with pytest.raises(ValueError, match="no split 'test'; this source has 'train', 'validation'"):
        corpora.HuggingFaceSource(data_files).check("test")
    with pytest.raises(ValueError, match=r"format of .* is not clear"):
        (tmp_path / "a.bin").write_bytes(b"x")
        corpora.HuggingFaceSource({"train": str(tmp_path / "a.bin")}).check("train")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match="The corpus is empty"):
        corpora.HuggingFaceSource({"train": str(tmp_path / "empty.jsonl")}).check("train")
    with pytest.raises(ValueError, match="Reader 3 of 4 has no document"):
        few = write_jsonl(tmp_path / "few.jsonl", [make_document(0, row) for row in range(3)])
        read(corpora.HuggingFaceSource({"train": few}), num_readers=4, reader=3)


def test_a_file_with_the_name_of_a_pattern_and_texts_that_are_dates(tmp_path, write_jsonl):
    """Browsers call a second download `a [1].jsonl`; Arrow takes texts that are all dates for times."""
    file = write_jsonl(tmp_path / "a [1].jsonl", [{"text": "2023-04-01"}, {"text": "2023-04-02"}])
    (documents,) = corpora.HuggingFaceSource({"train": file}).documents("train")
    assert documents == [{"text": "2023-04-01"}, {"text": "2023-04-02"}]
    with pytest.raises(FileNotFoundError, match=r"No file matches .* \[1\] is a pattern, .*: write \[\[\]1\] for"):
        corpora.HuggingFaceSource({"train": str(tmp_path / "a [1]" / "*.jsonl")}).check("train")


def test_a_file_unlike_the_others_is_named_before_training(corpus, data_files, write_jsonl):
    write_jsonl(corpus / "train-5.jsonl", [{"txt": "no such column here"}])
    with pytest.raises(ValueError, match=r"train-5\.jsonl cannot be read with the columns \['text'\]"):
        corpora.HuggingFaceSource(data_files).check("train")
    (corpus / "train-5.jsonl").write_text('{"text": "half a li')
    with pytest.raises(ValueError, match=r"train-5\.jsonl"):
        corpora.HuggingFaceSource(data_files).check("train")


def test_a_column_of_mixed_values_beside_the_text_does_not_matter(tmp_path):
    rows = [{"text": f"document {i}", "list": [i, [i]]} for i in range(3)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = corpora.HuggingFaceSource({"train": str(tmp_path / "a.jsonl")}, ["text"])
    assert [row["text"] for found in source.documents("train") for row in found] == [row["text"] for row in rows]
    assert source.column_names("train") == ["text", "list"]
    (tmp_path / "b.csv").write_text("text,label\n")
    assert corpora.HuggingFaceSource({"train": str(tmp_path / "b.csv")}).column_names("train") == ["text", "label"]


@pytest.mark.parametrize("large", [False, True], ids=["texts", "large texts"])
def test_bytes_of_texts_are_those_of_the_file(large):
    column = pa.chunked_array([pa.array(["a", None, "é"], pa.large_string() if large else pa.string()), []])
    assert chunks._to_numpy(column.slice(1)).tolist() == [b"", "é".encode()]


def test_a_local_corpus_is_read_without_clients_of_http_and_arrows_functions(tmp_path):
    for part in range(2):
        (tmp_path / f"{part}.jsonl").write_text(f'{{"text": "part {part}"}}\n')
    code = f"""
import sys
from tasks.sources.corpora import HuggingFaceSource
source = HuggingFaceSource({{"train": {str(tmp_path / "*.jsonl")!r}}})
print([rows.columns["text"].tolist() for rows in source.chunks_of("train", False, 0).documents(num_epochs=1)])
print([name for name in ("requests", "urllib3", "huggingface_hub.utils", "pyarrow.compute") if name in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=house.ROOT)
    assert out.stdout == "[[b'part 0'], [b'part 1']]\n[]\n"
