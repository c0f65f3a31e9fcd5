"""Checks of tasks of SeqIO's: their ends, T5's own objectives, and sources that are not ours."""

import functools

import pytest
import seqio
import tensorflow as tf

from limba.addons.plan.data import lint_tasks
from limba.addons.seqio import lint_sources
from limba.data import contract
from tasks.t5 import t5_preprocessors

TRAIN, EVAL = lint_tasks.Purpose("train"), lint_tasks.Purpose("train_eval")
BYTES = seqio.ByteVocabulary(extra_ids=100)


def _check(name, lengths, use=TRAIN, split="train", **options):
    config = contract.DatasetConfig(name, lengths, split, 8, **options)
    return {finding.name: finding for finding in lint_tasks.check(config, "EncDecFeatureConverter", use)}


def _register(name, documents, preprocessors, vocabulary=BYTES, **source):
    """A task over a function that makes `documents()` into a data set."""

    def make(split, shuffle_files, seed=None):
        del split, shuffle_files, seed
        return documents()

    feature = seqio.Feature(vocabulary, add_eos=True)
    return seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(make, splits=("train", "validation"), **source),
        preprocessors=[seqio.preprocessors.tokenize, *preprocessors],
        output_features={"inputs": feature, "targets": feature},
    )


def _texts(count, endless=False):
    dataset = tf.data.Dataset.range(count).map(lambda i: {"targets": tf.strings.join(["text ", tf.as_string(i)])})
    return dataset.repeat() if endless else dataset


def _generator(count, endless=False):
    def texts():
        while True:
            yield from (f"text {i}" for i in range(count))
            if not endless:
                return

    dataset = tf.data.Dataset.from_generator(texts, output_signature=tf.TensorSpec([], tf.string))
    return dataset.map(lambda text: {"targets": text})


CORRUPT = (functools.partial(t5_preprocessors.span_corruption, mean_noise_span_length=20.0),)
EOS = (seqio.preprocessors.append_eos_after_trim,)


def test_ends_of_examples():
    lengths = {"inputs": 64, "targets": 13}
    _register("right", functools.partial(_texts, 200), (*CORRUPT, *EOS))
    _register("without", functools.partial(_texts, 200), CORRUPT)
    _register("doubled", functools.partial(_texts, 200), (*CORRUPT, seqio.preprocessors.append_eos, *EOS))
    ends = {"missing_eos", "double_eos"}
    assert not ends & _check("right", lengths).keys()
    assert ends & _check("without", lengths).keys() == {"missing_eos"}
    found = _check("doubled", {"inputs": 64, "targets": 16})["double_eos"]
    assert found.severity == "warning" and "end with two end-of-sequence ids" in found.what


def test_sources_that_cannot_be_sharded_or_saved():
    lengths = {"inputs": 64, "targets": 13}
    _register("function", functools.partial(_texts, 200), (*CORRUPT, *EOS))
    _register("generator", functools.partial(_generator, 200), (*CORRUPT, *EOS))
    found = _check("function", lengths)
    assert found.keys() == {"unshardable_source"} and "1 shard for 8 readers" in found["unshardable_source"].what
    assert _check("generator", lengths).keys() == {"unshardable_source", "generator_source"}
    assert not _check("generator", lengths, num_readers=1).keys() & {"unshardable_source"}


@pytest.mark.parametrize("make", [_texts, _generator])
def test_evaluation_that_cannot_end(make, monkeypatch):
    lengths = {"inputs": 64, "targets": 13}
    _register("ends", functools.partial(make, 50), (*CORRUPT, *EOS))
    _register("endless", functools.partial(make, 50, endless=True), (*CORRUPT, *EOS))
    assert not _check("ends", lengths, EVAL, "validation")
    found = _check("endless", lengths, EVAL, "validation")["endless_evaluation"]
    assert found.severity == "error" and "began again after 50 documents" in found.what
    assert "set train.eval_steps" in found.remedy
    found = _check("endless", lengths, lint_tasks.Purpose("train_eval", 20), "validation")["endless_evaluation"]
    assert found.severity == "warning" and "the same 20 batches" in found.cost
    monkeypatch.setattr(lint_sources, "_MAX_DOCUMENTS", 30)
    found = _check("ends", lengths, EVAL, "validation")["endless_evaluation"]
    assert "did not end within 31 documents" in found.what


def test_objectives_in_t5_s_own_words():
    cases = {
        "spans": (functools.partial(t5_preprocessors.span_corruption, mean_noise_span_length=20.0), 13),
        "single": (t5_preprocessors.iid_denoising, 36),
        "prefix": (t5_preprocessors.prefix_lm, 63),
    }
    for name, (preprocessor, targets) in cases.items():
        _register(name, functools.partial(_texts, 200), (preprocessor, *EOS))
        assert _check(name, {"inputs": 64, "targets": targets}).keys() == {"unshardable_source"}, name
        found = _check(name, {"inputs": 64, "targets": targets - 3})["target_length"]
        assert found.severity == "error" and f"of {name!r} have {targets}." in found.what


def test_what_cannot_be_read_is_said_and_the_rest_is_looked_at():
    def broken():
        raise ConnectionError("no network")
        yield

    def make():
        dataset = tf.data.Dataset.from_generator(broken, output_signature=tf.TensorSpec([], tf.string))
        return dataset.map(lambda text: {"targets": text})

    feature = seqio.Feature(BYTES, add_eos=True)
    seqio.TaskRegistry.add(
        "broken",
        source=seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: make(), splits=("train",)),
        preprocessors=[seqio.preprocessors.tokenize, *CORRUPT, *EOS],
        output_features={"targets": feature},
    )
    found = _check("broken", {"inputs": 64, "targets": 13})
    assert found.keys() == {"source", "missing_eos", "unshardable_source", "generator_source"}
    assert found["source"].what == "Split 'train' of task 'broken' cannot be read: ConnectionError: no network."
    assert "appends no end-of-sequence id to its inputs: it declares no" in found["missing_eos"].what


def test_bytes_that_are_in_no_text_stand_for_spans():
    """Google's ByT5 in T5's words."""
    none = seqio.ByteVocabulary(extra_ids=0)
    _register("byt5", functools.partial(_texts, 200), (*CORRUPT, *EOS), none)
    assert "sentinel_collision" not in _check("byt5", {"inputs": 64, "targets": 13}, split="train")


def test_a_cache_that_is_not_there(seqio_task):
    seqio.TaskRegistry.add(
        "test_cacheable",
        source=seqio_task.source,
        preprocessors=[seqio.CacheDatasetPlaceholder(), *seqio_task.preprocessors],
        output_features=seqio_task.output_features,
    )
    found = _check("test_cacheable", {"inputs": 24, "targets": 24}, use_cached=True)
    assert found.keys() == {"no_cache"} and "'test_cacheable' has no offline cache" in found["no_cache"].what
    assert not _check("test_cacheable", {"inputs": 64, "targets": 64})
