"""Small corpora and tasks, without TensorFlow; its messages are kept out of the output of tests that need it."""

import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest

from tasks import objectives
from tasks.pretraining import denoising
from tasks.registry import Feature, MixtureRegistry, TaskRegistry
from tasks.registry import tasks as registered_tasks
from tasks.sources import corpora
from tasks.supervised import row_preprocessor
from tasks.vocabularies import ByteVocabulary

# 7 uneven shards; the smallest has 3 documents.
SHARD_ROWS = (40, 3, 25, 60, 17, 31, 24)
LENGTHS = objectives.span_corruption_lengths(64, 0.15, 3.0)


def _write_jsonl(path, documents):
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    return path


def _make_document(shard, row):
    words = " ".join(f"w{shard}x{row}y{i}" for i in range(4 + row % 9))
    return {"text": f"shard {shard} row {row}: {words}", "n": row}


@pytest.fixture(autouse=True)
def _clean_registry():
    before = set(registered_tasks.all_names())
    row_preprocessor._warned.clear()  # What is said once in a process.
    row_preprocessor._told_of_cut.clear()
    yield
    for registry in registered_tasks.registries():  # SeqIO's too, where a test has imported it.
        for name in set(registry.names()) - before:
            registry.remove(name)


@pytest.fixture
def corpus(tmp_path):
    """A directory with 7 training shards and one validation file."""
    directory = tmp_path / "corpus"
    directory.mkdir()
    for shard, rows in enumerate(SHARD_ROWS):
        _write_jsonl(directory / f"train-{shard}.jsonl", [_make_document(shard, row) for row in range(rows)])
    _write_jsonl(directory / "validation.jsonl", [_make_document(99, row) for row in range(30)])
    return directory


@pytest.fixture
def data_files(corpus):
    return {"train": str(corpus / "train-*.jsonl"), "validation": str(corpus / "validation.jsonl")}


@pytest.fixture(name="write_jsonl")
def write_jsonl_fixture():
    return _write_jsonl


@pytest.fixture(name="make_document")
def make_document_fixture():
    """The text of a (shard, row) of the corpus."""
    return _make_document


@pytest.fixture
def places():
    """Every (shard, row) of the training split."""
    return {(shard, row) for shard, rows in enumerate(SHARD_ROWS) for row in range(rows)}


@pytest.fixture
def lengths():
    return dict(LENGTHS)


def _register(name, data_files):
    """A byte-level task whose chunks are smaller than most shards and whose buffer is larger than any."""
    feature = Feature(ByteVocabulary(extra_ids=100), add_eos=True)
    return TaskRegistry.add(
        name,
        source=corpora.HuggingFaceSource(data_files, chunk_documents=8),
        preprocessors=[denoising.Denoise(objectives.SpanCorruption(), documents_per_batch=32)],
        output_features={"inputs": feature, "targets": feature},
        shuffle_buffer_size=400,
    )


@pytest.fixture
def task(data_files):
    return _register("test_task", data_files)


@pytest.fixture
def mixture(data_files):
    """Two tasks, one of them in a nested mixture, at the rates 3 : 1."""
    _register("test_mix_a", {"train": data_files["train"]})
    _register("test_mix_b", {"train": data_files["validation"]})
    inner = MixtureRegistry.add("test_inner", [("test_mix_a", 3.0)])
    return MixtureRegistry.add("test_mixture", [(inner.name, 3.0), ("test_mix_b", 1.0)])
