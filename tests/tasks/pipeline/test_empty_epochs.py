"""Documents of which no example is made end the run with a message; they do not keep it waiting."""

import numpy as np
import pyarrow as pa
import pytest

from limba.data import contract
from tasks import objectives, preview
from tasks.pipeline import task_batches
from tasks.pretraining import denoising
from tasks.registry import Feature, TaskRegistry
from tasks.sources import corpora
from tasks.sources.chunks import Piece, ReaderChunks
from tasks.vocabularies import ByteVocabulary
from tests.tasks.conftest import LENGTHS


def _batches(files, num_readers=1):
    feature = Feature(ByteVocabulary(100))
    TaskRegistry.add(
        "test_blank",
        source=corpora.HuggingFaceSource({"train": str(files), "validation": str(files)}),
        preprocessors=[denoising.Denoise(objectives.SpanCorruption())],
        output_features={"inputs": feature, "targets": feature},
    )
    config = contract.DatasetConfig("test_blank", LENGTHS, "train", 4, seed=1, num_readers=num_readers, shuffle=False)
    return task_batches.get_train_batches(config)


@pytest.mark.parametrize("count", [3, 300])
def test_blank_documents_only(tmp_path, write_jsonl, count):
    """They are noticed before anything is read for training."""
    words = rf"No example can be made of split 'train' of .*blank\.jsonl.*: its {count} documents have 0 tokens in the"
    with pytest.raises(ValueError, match=words):
        _batches(write_jsonl(tmp_path / "blank.jsonl", [{"text": ""}] * count))


def test_one_of_two_readers_would_have_blank_documents_only(tmp_path, write_jsonl):
    documents = [{"text": "words of a document"}, {"text": ""}] * 3
    batches = _batches(write_jsonl(tmp_path / "half.jsonl", documents), num_readers=2)
    assert len(next(batches)["encoder_input_tokens"]) == 4


def test_one_document_among_many_blank_ones_is_read_for_ever(tmp_path, write_jsonl):
    documents = [{"text": ""}] * 1000
    documents[500] = {"text": "the only words"}
    batches = _batches(write_jsonl(tmp_path / "rare.jsonl", documents))
    assert [len(next(batches)["encoder_input_tokens"]) for _ in range(3)] == [4, 4, 4]


def test_an_epoch_without_documents():
    """As where all shards stay unreadable and `on_broken_shard` is "skip"."""
    table = pa.table({"text": pa.array([], pa.string())})
    chunks = ReaderChunks(
        lambda index, chunk: (table, np.zeros(0, np.int64), chunk == 0), [Piece(0, 0, 1)], {"text": object}, True, 0, 2
    )
    with pytest.raises(ValueError, match="Reader 2 gets no document in a whole epoch"):
        list(chunks.documents(None))
    assert [len(found.document) for found in chunks.documents(2)] == [0, 0]


def test_preview_of_blank_documents(tmp_path, write_jsonl):
    with pytest.raises(ValueError, match="split 'train'"):
        _batches(write_jsonl(tmp_path / "blank.jsonl", [{"text": ""}] * 3))
    with pytest.raises(SystemExit, match=r"error: No example can be made of split 'validation' of .*: its 3 documents"):
        preview.main(["test_blank", "--split", "validation"])
