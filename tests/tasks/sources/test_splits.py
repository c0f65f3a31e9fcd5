import functools
import itertools
import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from limba.data import contract
from tasks.pipeline import task_batches
from tasks.pretraining import pretraining_tasks
from tasks.sources import corpora, splits
from tasks.vocabularies import ByteVocabulary
from tests.tasks.conftest import SHARD_ROWS


def documents_of(chunks, num_epochs):
    """(epoch, shard, row) in the order in which they come."""
    return [tuple(document) for chunk in chunks.documents(num_epochs) for document in chunk.document.tolist()]


def read(source, split, readers=1, shuffle=False):
    """Every (shard, row) of a split, by all readers."""
    return [
        tuple(document[1:])
        for reader in range(readers)
        for document in documents_of(source.chunks_of(split, shuffle, 1, reader, readers), 1)
    ]


@pytest.mark.parametrize(
    "text", ["train", "train[:1%]", "train[1000:2000]", "train[-5:]", "train[10%:-10%]", "a.b[3:]", "train[5%:][:50]"]
)
def test_slices_are_written_as_they_are_read(text):
    assert str(splits.Part.parse(text)) == text


@pytest.mark.parametrize("text", ["train[", "train[1]", "train[1:2:3]", "train[a:]", "train[5%:][5:]", ""])
def test_what_is_no_slice(text):
    with pytest.raises(ValueError, match="is not a slice of a split"):
        splits.Part.parse(text)


@pytest.mark.parametrize("readers", [1, 3])
@pytest.mark.parametrize(
    ("text", "start", "stop"),
    [
        ("all[:50]", 0, 50),
        ("all[50:]", 50, 200),
        ("all[43:68]", 43, 68),  # a whole shard
        ("all[40:43]", 40, 43),
        ("all[:40]", 0, 40),
        ("all[40:]", 40, 200),
        ("all[:10%]", 0, 20),
        ("all[90%:]", 180, 200),
        ("all[-7:]", 193, 200),
        ("all[30:-30]", 30, 170),
        ("all[150:1000]", 150, 200),
        ("all[10%:][:30]", 20, 50),
        ("all[:10%][:30]", 0, 20),
        ("all[-30:][:7]", 170, 177),
    ],
)
def test_slices(data_files, places, text, start, stop, readers):
    source = corpora.HuggingFaceSource({"all": data_files["train"]}, splits={"part": text}, chunk_documents=4)
    expected = sorted(places)[start:stop]
    shards = sorted({shard for shard, _ in expected})
    if len(expected) >= readers:
        seen = [(shards[shard], row) for shard, row in read(source, "part", readers)]
        assert sorted(seen) == expected
        if readers == 1:
            assert seen == expected
    assert [name[-7] for name in source.list_shards("part")] == [str(shard) for shard in shards]


def test_empty_and_unknown(data_files):
    for text in ("all[200:]", "all[5:5]", "all[9:3]"):
        source = corpora.HuggingFaceSource({"all": data_files["train"]}, splits={"part": text})
        with pytest.raises(ValueError, match=r"corpus is empty|has no document"):
            read(source, "part")
    source = corpora.HuggingFaceSource({"all": data_files["train"]}, splits={"part": "any[:5]"})
    with pytest.raises(ValueError, match="no split 'any'; this source has 'all'"):
        source.check("part")
    with pytest.raises(ValueError, match="no split 'all'; this source has 'part'"):
        source.check("all")


def test_held_out_is_disjoint_whole_and_stable(corpus, data_files, places, make_document):
    """Copies of a text are on one side, and other files, formats and readers change nothing."""
    source = corpora.HuggingFaceSource({"train": data_files["train"]}, splits=splits.held_out(0.25), chunk_documents=4)
    validation = set(read(source, "validation"))
    for readers in (1, 2, 4, 5):
        train = read(source, "train", readers, shuffle=True)
        assert len(train) == len(set(train)) and set(train) | validation == places and not set(train) & validation
    assert 30 <= len(validation) <= 70  # a quarter of 200
    rows = [make_document(shard, row) for shard, row in sorted(places)] * 2
    pa.parquet.write_table(pa.Table.from_pylist(rows), corpus / "twice.parquet", row_group_size=7)
    twice = corpora.HuggingFaceSource({"train": corpus / "twice.parquet"}, splits=splits.held_out(0.25))
    texts = [document["text"] for documents in twice.documents("validation") for document in documents]
    assert sorted(texts) == sorted([make_document(*place)["text"] for place in validation] * 2)
    with pytest.raises(ValueError, match=r"the share is 2; it lies between 0 and 1"):
        splits.held_out(2)


def test_evaluation_of_a_slice_reads_no_further(corpus, data_files, lengths):
    """What lies behind it may even be broken."""
    (corpus / "train-3.jsonl").write_text('{"text": "half a li')
    source = corpora.HuggingFaceSource(
        {"train": data_files["train"]}, splits={"train": "train[50:]", "validation": "train[:50]"}
    )
    task = pretraining_tasks.register_pretraining_task(
        "test_slice", data_files=source, vocabulary=ByteVocabulary(extra_ids=100)
    )
    batches = list(
        task_batches.get_eval_batches(contract.DatasetConfig(task.name, lengths, "validation", 8))[task.name]
    )
    assert 0 < len(batches) < 200 and set(batches[-1]["decoder_loss_weights"].max(1)) <= {0, 1}
    with pytest.raises(ValueError, match=r"train-3\.jsonl cannot be read"):
        source.check("train")


def test_beginning_anywhere(data_files):
    """`start` gives the rest of a stream, of slices and shares too."""
    for part in ("train", "train[45:190]", splits.held_out(0.3)["train"]):
        source = corpora.HuggingFaceSource({"train": data_files["train"]}, splits={"train": part}, chunk_documents=4)
        chunks_of = functools.partial(source.chunks_of, "train", shuffle=True, seed=5, reader=1, num_readers=3)
        whole = documents_of(chunks_of(), 2)
        for begin in (0, 17, len(whole) // 2 + 3, len(whole) - 1):
            assert documents_of(chunks_of(start=whole[begin]), 2) == whole[begin:]


def test_a_part_belongs_to_the_position(data_files):
    prints = [
        json.dumps(corpora.HuggingFaceSource({"train": data_files["train"]}, splits=part).fingerprint("train"))
        for part in (None, {"train": "train"}, {"train": "train[1:]"}, splits.held_out(0.1), splits.held_out(0.2))
    ]
    assert prints[0] == prints[1]
    assert all(a != b for a, b in itertools.combinations(prints[1:], 2))
    assert sum(SHARD_ROWS) == 200


def test_one_document_of_which_almost_all_is_held_out_is_refused_in_words(tmp_path):
    (tmp_path / "all.txt").write_text("the only document\n")
    slices = {"train": "all[99%:]", "validation": "all[:99%]"}
    for parts, words in (
        (splits.held_out(0.99, "all"), "There is no document"),
        (slices, "Split 'train' has no document"),
    ):
        source = corpora.HuggingFaceSource({"all": str(tmp_path / "all.txt")}, ["text"], splits=parts)
        assert [row["text"] for rows in source.documents("validation") for row in rows] == ["the only document"]
        with pytest.raises(ValueError, match=words):
            source.chunks_of("train", shuffle=False, seed=0)
