"""Streams of SeqIO's tasks: over sources of ours their position is counted, over others TensorFlow saves it."""

import dataclasses
import itertools
import json
import logging

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba import command_line
from limba.addons.seqio import foreign_readers, seqio_streams, tf_documents, tf_iterators
from limba.data import contract
from tasks.pipeline import task_batches
from tasks.pipeline.streams import Stream
from tasks.registry import Task
from tasks.registry.providers import find_provider
from tasks.sources import corpora
from tasks.t5 import t5_preprocessors
from tests.addons.seqio.conftest import LENGTHS, STEPS


def config_for(name, **options):
    options = {"split": "train", "batch_size": 8, "num_readers": 2, "seed": 3, **options}
    return contract.DatasetConfig(name, LENGTHS, **options)


def take(batches, count):
    return [next(batches) for _ in range(count)]


def assert_equal(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


@pytest.fixture
def mixtures(our_task, seqio_task, task_of_our_steps, register_with_seqio, text_files):
    """Of tasks of ours and of SeqIO's; `foreign` has a source of SeqIO's as well."""
    register_with_seqio("test_lines", text_files)
    seqio.MixtureRegistry.add("inner", [("test_our_steps", 1.0), ("test_seqio", 1.0)])
    seqio.MixtureRegistry.add("counted", [("inner", 1.0), ("test_ours", lambda task: float(len(task.name)) / 9)])
    seqio.MixtureRegistry.add("foreign", [("test_lines", 1.0), ("test_ours", 1.0)])


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "kind", "pack"),
    [
        ("test_ours", Stream, False),
        ("test_our_steps", Stream, True),
        ("test_seqio", seqio_streams.DocumentStream, False),
        ("counted", seqio_streams.DocumentStream, True),
        ("test_lines", seqio_streams.ForeignStream, True),
        ("foreign", seqio_streams.ForeignStream, False),
    ],
)
def test_a_restored_stream_is_the_uninterrupted_one(mixtures, name, kind, pack):
    config = config_for(name, pack=pack)
    assert type(task_batches.open_stream(config, "EncDecFeatureConverter")) is kind
    batches = task_batches.get_train_batches(config)
    take(batches, 23)
    state = batches.save_state()
    expected = take(batches, 25)
    restored = task_batches.get_train_batches(config)
    restored.restore_state(state)
    assert_equal(take(restored, 25), expected)
    if kind is seqio_streams.ForeignStream:
        assert sorted(state) == ["reader-0000-of-0002.zip", "reader-0001-of-0002.zip"]
        return
    found = json.loads(state["reader-0000-of-0002.json"])
    assert found["batches"] == 23 and max(map(len, state.values())) < 3500
    for place in found["position"].values():
        assert place["file"] == f"train-{place['shard']}.jsonl"


def test_asking_whether_a_stream_can_be_saved_takes_nothing_from_it(mixtures, monkeypatch):
    config = config_for("foreign")
    expected = take(task_batches.get_train_batches(config), 10)
    monkeypatch.setattr(foreign_readers.ForeignReader, "probe", lambda reader: True)
    assert_equal(take(task_batches.get_train_batches(config), 10), expected)


def test_a_task_of_our_steps_has_the_batches_of_ours(mixtures, our_task):
    """Whatever it was registered with; its name does not count."""
    batches = [take(task_batches.get_train_batches(config_for(name)), 12) for name in ("test_ours", "test_our_steps")]
    assert_equal(*batches)
    converted = find_provider("test_our_steps")
    assert isinstance(converted, Task) and converted.preprocessors == our_task.preprocessors
    assert converted.output_features == our_task.output_features


def test_a_mixture_draws_at_its_rates(mixtures):
    batches = task_batches.get_train_batches(config_for("counted", batch_size=64, num_readers=1))
    drawn = sum(next(batches)["example_tasks"].sum(axis=0) for _ in range(12))
    # test_our_steps and test_seqio share 1, test_ours has 1.
    assert drawn / drawn.sum() == pytest.approx([0.25, 0.5, 0.25], abs=0.05)
    assert batches.task_groups == {
        "test_our_steps": [0],
        "test_ours": [1],
        "test_seqio": [2],
        "inner": [0, 2],
        "objective_span3_0.15": [0, 1],
    }


@pytest.mark.parametrize("name", ["counted", "foreign"])
def test_every_host_reads_its_rows(mixtures, name):
    config = config_for(name)
    whole = take(task_batches.get_train_batches(config), 4)
    hosts = [take(task_batches.get_train_batches(config, process_index=i, process_count=2), 4) for i in range(2)]
    for parts, batch in zip(zip(*hosts, strict=True), whole, strict=True):
        assert_equal([{key: np.concatenate([part[key] for part in parts]) for key in batch}], [batch])


@pytest.mark.parametrize("name", ["test_seqio", "counted"])
def test_evaluation_ends_and_repeats(mixtures, name, make_document):
    config = config_for(name, split="validation", num_readers=None)
    sets = task_batches.get_eval_batches(config)
    assert set(sets) == {"test_seqio"} if name == "test_seqio" else {"counted", "test_seqio", "test_ours"} < set(sets)
    batches = list(sets["test_seqio"])
    assert_equal(batches, list(sets["test_seqio"]))
    rows = np.concatenate([batch["decoder_target_tokens"] for batch in batches])
    assert len(rows) == 32 and not rows[30:].any()
    # In the order of the files; texts are longer than 23 bytes and EOS.
    vocabulary = seqio.ByteVocabulary()
    assert [vocabulary.decode(row.tolist()) for row in rows[:30]] == [
        make_document(99, row)["text"][:23] for row in range(30)
    ]
    assert 0 < len(list(sets[name])) < 30


def test_evaluation_of_lines(mixtures):
    (batches,) = task_batches.get_eval_batches(config_for("test_lines", num_readers=None)).values()
    weights = [batch["decoder_loss_weights"].any(axis=1).sum() for batch in batches]
    assert weights == [8] * 25 and len(list(itertools.islice(batches, 3))) == 3


class DoubledConverter(seqio.PrefixLMFeatureConverter):
    """A user's own: every target twice as large."""

    def _convert_features(self, ds, task_feature_lengths):
        converted = super()._convert_features(ds, task_feature_lengths)
        return converted.map(lambda x: {**x, "decoder_target_tokens": 2 * x["decoder_target_tokens"]})


def test_a_converter_of_a_users_own(mixtures):
    """The position stays counted."""
    config = config_for("counted", pack=True, shuffle=False, num_readers=1)
    assert type(task_batches.open_stream(config, DoubledConverter)) is seqio_streams.DocumentStream
    batches = task_batches.get_train_batches(config, DoubledConverter)
    known = task_batches.get_train_batches(config, "PrefixLMFeatureConverter")
    state = {}
    for _ in range(6):
        batch, expected = next(batches), next(known)
        np.testing.assert_array_equal(batch["decoder_target_tokens"], 2 * expected["decoder_target_tokens"])
        assert batch.keys() == expected.keys()
        state = state or batches.save_state()
    restored = task_batches.get_train_batches(config, DoubledConverter)
    restored.restore_state(state)
    take(restored, 5)
    assert_equal([next(restored)], [next(batches)])


def test_inputs_that_a_task_makes_and_does_not_declare(data_files):
    """The chain that T5X's users write, over a source of ours."""
    seqio.TaskRegistry.add(
        "as_in_t5",
        source=corpora.HuggingFaceSource(data_files),
        preprocessors=[
            seqio.map_over_dataset(lambda example: {"inputs": None, "targets": example["text"]}),
            seqio.preprocessors.tokenize,
            t5_preprocessors.span_corruption,
            seqio.preprocessors.append_eos_after_trim,
        ],
        output_features={"targets": seqio.Feature(seqio.ByteVocabulary(100), add_eos=True)},
    )
    batches = take(task_batches.get_train_batches(config_for("as_in_t5", num_readers=1)), 3)
    targets = np.concatenate([batch["decoder_target_tokens"] for batch in batches])
    assert all(row[row != 0][-1] == 1 for row in targets) and targets[:, 0].min() == 358
    assert all((batch["encoder_input_tokens"] == 358).any() for batch in batches)


def test_use_cached_is_for_tasks_that_can_be_cached(our_task, seqio_task):
    """As in SeqIO: a task without a `CacheDatasetPlaceholder` is read as it is."""
    cached = config_for("test_seqio", use_cached=True)
    assert_equal(
        take(task_batches.get_train_batches(cached), 2),
        take(task_batches.get_train_batches(config_for("test_seqio")), 2),
    )
    seqio.TaskRegistry.add(
        "test_cacheable",
        source=seqio_task.source,
        preprocessors=[seqio.CacheDatasetPlaceholder(), *our_task.preprocessors],
        output_features=seqio_task.output_features,
    )
    remedy = r"'test_cacheable' has no offline cache.*USE_CACHED_TASKS=False.*seqio_cache_tasks.*'seqio\[cache-tasks\]'"
    with pytest.raises(ValueError, match=remedy):
        task_batches.get_train_batches(dataclasses.replace(cached, mixture_or_task_name="test_cacheable"))


def test_the_folders_of_offline_caches_are_searched(text_files, register_with_seqio, tmp_path):
    """--seqio_additional_cache_dirs, whose second folder has the examples: other texts than the files'."""
    task = register_with_seqio("test_cached", text_files, [seqio.CacheDatasetPlaceholder(), *STEPS])
    config = config_for("test_cached", use_cached=True, num_readers=1, shuffle=False)
    with pytest.raises(ValueError, match="'test_cached' has no offline cache"):
        task_batches.get_train_batches(config)
    cache = tmp_path / "b" / "test_cached"
    cache.mkdir(parents=True)
    (cache / "info.train.json").write_text('{"num_shards": 1, "features": {"text": {"shape": [], "dtype": "string"}}}')
    (cache / "stats.train.json").write_text('{"examples": 1}')
    (cache / "COMPLETED").write_text("")
    with tf.io.TFRecordWriter(str(cache / "train.tfrecord-00000-of-00001")) as writer:
        value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"zzzz"]))
        writer.write(tf.train.Example(features=tf.train.Features(feature={"text": value})).SerializeToString())
    before = list(seqio.get_global_cache_dirs())
    try:
        parser = command_line.argument_parser("train", "")
        command_line.parse_flags(parser, [f"--seqio_additional_cache_dirs={tmp_path / 'a'},{tmp_path / 'b'}"])
        batch = next(task_batches.get_train_batches(config))
    finally:
        seqio.set_global_cache_dirs(before)
    assert task.cache_dir == str(cache)
    assert batch["decoder_target_tokens"][0].tolist()[:5] == [*[ord("z") + 3] * 4, 1]


def test_errors(mixtures, seqio_task, register_with_seqio, caplog):
    config = config_for("test_seqio")
    with pytest.raises(ValueError, match=r"no task or mixture 'test_seqoi'.*'test_seqio'.*import"):
        task_batches.get_train_batches(config_for("test_seqoi"))
    with pytest.raises(ValueError, match="The nearest are 'EncDecFeatureConverter'"):
        task_batches.get_train_batches(config, "EncDecFeatureConvertor")
    with pytest.raises(ValueError, match="no split 'test'; it has 'train', 'validation'"):
        task_batches.get_train_batches(dataclasses.replace(config, split="test"))
    with pytest.raises(ValueError, match="no length for"):
        task_batches.get_train_batches(dataclasses.replace(config, task_feature_lengths={"inputs": 24}))
    # `foreign` has a task without a validation split.
    with caplog.at_level(logging.WARNING):
        sets = task_batches.get_eval_batches(config_for("foreign", split="validation", num_readers=None))
    assert "Task test_lines has no split 'validation' and is left out" in caplog.text and "test_lines" not in sets

    def fail(text):
        if text.startswith(b"shard 3"):
            raise ValueError(f"{text.decode()[:7]} is not wanted")
        return text

    fails = seqio.map_over_dataset(
        lambda e: {"text": tf.py_function(lambda x: fail(x.numpy()), [e["text"]], tf.string)}
    )
    ensure = seqio.map_over_dataset(lambda e: {"text": tf.ensure_shape(e["text"], [])})
    steps = [fails, ensure, *seqio_task.preprocessors]
    register_with_seqio("test_failing", seqio_task.source, steps)
    batches = task_batches.get_train_batches(config_for("test_failing", shuffle=False, num_readers=1))
    with pytest.raises(RuntimeError, match=r"Reading 'test_failing' failed after \d+ batches: ValueError: shard 3 is"):
        take(batches, 30)


def test_a_missing_whole_number_is_named(tmp_path):
    rows = [{"text": "a", "n": None if number == 7 else number} for number in range(9)]
    (tmp_path / "a.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = corpora.HuggingFaceSource({"train": [str(tmp_path / "a.json")]}, ["text", "n"])
    documents = tf_documents.documents(source.chunks_of("train", False, 0), 1)
    with pytest.raises(tf_iterators.ReadingError, match=r"ValueError: Column 'n' has no number in row 7 \(the first"):
        list(tf_iterators.read(documents))


def test_features_that_no_model_reads_need_no_length(register_with_seqio, text_files):
    name = "test_more_features"
    register_with_seqio(name, text_files)
    task = seqio.TaskRegistry.get(name)
    more = seqio.Feature(seqio.ByteVocabulary(100), required=False)
    seqio.TaskRegistry.remove(name)
    seqio.TaskRegistry.add(
        name,
        source=task.source,
        preprocessors=task.preprocessors,
        output_features={**task.output_features, "hints": more},
    )
    batch = next(task_batches.get_train_batches(config_for(name)))
    assert batch["decoder_target_tokens"].shape == (8, LENGTHS["targets"]) and batch["decoder_loss_weights"].any()
    with pytest.raises(ValueError, match=r"has no length for \['targets'\] of task"):
        task_batches.get_train_batches(dataclasses.replace(config_for(name), task_feature_lengths={"inputs": 64}))
