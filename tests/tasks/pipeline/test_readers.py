"""What readers deliver: every document once per epoch; a position that is small, readable and belongs to its data."""

import collections
import functools
import json

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba import data
from tasks import fingerprints, objectives, pipeline, preprocessors, sources

LENGTHS = {"inputs": 3, "targets": 3}


def _name_document(dataset):
    """One example per document, whose tokens say which it is: epoch, shard and row, each plus 1."""

    def name(example):
        tokens = tf.cast(example["document"] + 1, tf.int32)
        return {"inputs": tokens, "targets": tokens}

    return dataset.map(name)


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch):
    """A group of documents is otherwise many epochs of these corpora."""
    monkeypatch.setattr("tasks.streams._DOCUMENTS_PER_GROUP", 16)


def register_named(name, data_files, *steps):
    vocabulary = seqio.PassThroughVocabulary(1000)
    return seqio.TaskRegistry.add(
        name,
        source=sources.HuggingFaceSource({"train": data_files}, chunk_documents=8),
        preprocessors=[_name_document, *steps],
        output_features={feature: seqio.Feature(vocabulary) for feature in LENGTHS},
        shuffle_buffer_size=90,
    )


def read_documents(batches, steps):
    """(epoch, shard, row) in the order in which they come."""
    rows = np.concatenate([next(batches)["encoder_input_tokens"] for _ in range(steps)])
    return [tuple(row) for row in (rows - 1).tolist()]


@pytest.mark.parametrize("num_readers", [1, 2, 3, 4, 16])
def test_every_document_once_per_epoch(data_files, places, num_readers):
    """Through the readers and their shuffle buffers, over 7 uneven shards, for the first two epochs and more."""
    register_named("test_named", data_files["train"])
    config = data.DatasetConfig("test_named", LENGTHS, "train", 48, seed=2, num_readers=num_readers)
    documents = read_documents(pipeline.get_train_batches(config), 18)
    counts = collections.Counter(documents)
    assert {place: count for place, count in counts.items() if place[0] < 2} == {
        (epoch, *place): 1 for epoch in (0, 1) for place in places
    }
    assert set(counts.values()) == {1}
    orders = [[place for epoch, *place in documents if epoch == wanted] for wanted in (0, 1)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("rows", [[20], [3] * 6, [1] * 17, [0, 18, 0]])
def test_16_readers_of_few_documents(tmp_path, write_jsonl, rows):
    """No reader starves: of one shard, of shards with fewer rows than readers, and with empty shards between them."""
    for shard, count in enumerate(rows):
        write_jsonl(tmp_path / f"{shard:02d}.jsonl", [{"text": f"{shard} {row}"} for row in range(count)])
    register_named("test_few", str(tmp_path / "*.jsonl"))
    config = data.DatasetConfig("test_few", LENGTHS, "train", 16, shuffle=False, seed=2, num_readers=16)
    first = read_documents(pipeline.get_train_batches(config), 1)
    assert len(set(first)) == 16
    assert {epoch for epoch, *_ in first} == {0}


def _state(batches):
    return {name: json.loads(content) for name, content in batches.save_state().items()}


def test_the_state_is_small_and_readable(data_files):
    register_named("test_named", data_files["train"])
    config = data.DatasetConfig("test_named", LENGTHS, "train", 48, seed=2, num_readers=2)
    batches = pipeline.get_train_batches(config)
    assert all(state["position"] == {} for state in _state(batches).values())
    read_documents(batches, 9)
    saved = batches.save_state()
    assert sorted(saved) == ["reader-0000-of-0002.json", "reader-0001-of-0002.json"]
    assert max(map(len, saved.values())) < 2000
    state = json.loads(saved["reader-0000-of-0002.json"])
    assert state["batches"] == 9 and state["examples"] == 9 * 24
    place = state["position"]["test_named"]
    # 216 examples in shuffle blocks of 45: the fifth began with example 180, the fifth of a group of 16.
    assert (place["epoch"], place["example"], place["taken"]) == (1, 180 % 16, 36)
    assert place["file"] == f"train-{place['shard']}.jsonl"
    assert isinstance(place["row"], int)


@seqio.map_over_dataset(num_seeds=1)
def _draw(example, seed):
    return {**example, "targets": tf.random.stateless_uniform([3], seed, 1, 1000, tf.int32)}


def test_random_preprocessors_draw_anew_in_every_group(data_files):
    """SeqIO's seeds belong to an example's place: they do not begin again with a group of documents."""
    register_named("test_random", data_files["train"], _draw)
    config = data.DatasetConfig("test_random", LENGTHS, "train", 50, seed=2, num_readers=1)
    batches = pipeline.get_train_batches(config)
    drawn = [tuple(row) for _ in range(8) for row in next(batches)["decoder_target_tokens"].tolist()]
    assert len(set(drawn)) > 0.99 * len(drawn)
    state = batches.save_state()
    assert max(place["epoch"] for place in json.loads(state["reader-0000-of-0001.json"])["position"].values()) >= 1
    expected = next(batches)["decoder_target_tokens"]
    restored = pipeline.get_train_batches(config)
    restored.restore_state(state)
    np.testing.assert_array_equal(next(restored)["decoder_target_tokens"], expected)


def test_another_preprocessor_is_refused(data_files):
    register_named("test_named", data_files["train"])
    config = data.DatasetConfig("test_named", LENGTHS, "train", 48, seed=2, num_readers=2)
    state = pipeline.get_train_batches(config).save_state()
    seqio.TaskRegistry.remove("test_named")
    register_named("test_named", data_files["train"], _draw)
    with pytest.raises(ValueError, match=r"test_named\.preprocessors was .*'_name_document'.* and is .*'_draw'"):
        pipeline.get_train_batches(config).restore_state(state)


def test_preprocessors_are_described_without_addresses():
    step = functools.partial(_name_document, sizes=[1, 2], like={"a": object()})
    assert fingerprints.describe(step) == "_name_document(sizes=[1, 2], like={'a': object})"
    denoise = preprocessors.Denoise(objectives.SpanCorruption(0.2))
    assert fingerprints.describe(denoise).startswith("Denoise(objective=SpanCorruption(noise_density=0.2, ")
