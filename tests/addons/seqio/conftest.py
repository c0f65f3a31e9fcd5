"""Tasks of SeqIO's: of a user's functions over our sources, and over sources of his own."""

import pytest
import seqio
import tensorflow as tf

from tasks import objectives
from tasks.pretraining import denoising
from tasks.registry import Feature, TaskRegistry
from tasks.sources import corpora
from tasks.vocabularies import ByteVocabulary
from tests.tasks.conftest import _clean_registry  # noqa: F401

LENGTHS = {"inputs": 24, "targets": 24}


@seqio.map_over_dataset
def continue_text(example):
    """The first half of a text, and all of it: texts for `seqio.preprocessors.tokenize`."""
    half = tf.strings.length(example["text"]) // 2
    return {"inputs": tf.strings.substr(example["text"], 0, half), "targets": example["text"]}


@seqio.map_over_dataset(num_seeds=1)
def turn_at_random(example, seed):
    turns = tf.random.stateless_uniform([], seed) < 0.5
    return {**example, "inputs": tf.cond(turns, lambda: example["inputs"][::-1], lambda: example["inputs"])}


STEPS = (continue_text, seqio.preprocessors.tokenize, turn_at_random, seqio.preprocessors.append_eos_after_trim)


@pytest.fixture
def register_with_seqio():
    """Registers a task of a user's functions over any source."""

    def register(name, source, steps=STEPS, vocabulary=None, **options):
        vocabulary = vocabulary or seqio.ByteVocabulary(100)
        return seqio.TaskRegistry.add(
            name,
            source=source,
            preprocessors=list(steps),
            output_features={feature: seqio.Feature(vocabulary) for feature in ("inputs", "targets")},
            **{"shuffle_buffer_size": 100, **options},
        )

    return register


@pytest.fixture
def text_files(tmp_path):
    """A source of SeqIO's: 4 files of 50 lines."""
    for shard in range(4):
        (tmp_path / f"{shard}.txt").write_text("\n".join(f"line {shard} {i}" for i in range(50)))
    return seqio.FileDataSource(
        lambda file: tf.data.TextLineDataset(file).map(lambda line: {"text": line}), {"train": str(tmp_path / "*.txt")}
    )


@pytest.fixture
def seqio_task(register_with_seqio, data_files):
    """Over a source of ours: its position is counted."""
    return register_with_seqio("test_seqio", corpora.HuggingFaceSource(data_files, chunk_documents=8))


@pytest.fixture
def our_task(data_files):
    """Windows of 24 inputs and 7 targets."""
    feature = Feature(ByteVocabulary(100))
    return TaskRegistry.add(
        "test_ours",
        source=corpora.HuggingFaceSource(data_files, chunk_documents=8),
        preprocessors=[denoising.Denoise(objectives.SpanCorruption(), documents_per_batch=32)],
        output_features={"inputs": feature, "targets": feature},
        shuffle_buffer_size=100,
    )


@pytest.fixture
def task_of_our_steps(data_files):
    """Registered with SeqIO, as task modules written for it have them, of parts of ours only."""
    feature = seqio.Feature(seqio.ByteVocabulary(100), add_eos=True)
    return seqio.TaskRegistry.add(
        "test_our_steps",
        source=corpora.HuggingFaceSource(data_files, chunk_documents=8),
        preprocessors=[denoising.Denoise(objectives.SpanCorruption(), documents_per_batch=32)],
        output_features={"inputs": feature, "targets": feature},
        shuffle_buffer_size=100,
    )
