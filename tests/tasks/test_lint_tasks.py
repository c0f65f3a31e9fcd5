import functools

import pytest
import seqio
import tensorflow as tf

from limba import data
from tasks import lint_tasks, objectives, pretraining, t5_preprocessors

TRAIN, EVAL = lint_tasks.Use("train"), lint_tasks.Use("train_eval")
BYTES = seqio.ByteVocabulary(extra_ids=100)


def _check(name, lengths, use=TRAIN, split="train", **options):
    config = data.DatasetConfig(name, lengths, split, 8, **options)
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


def test_a_task_of_ours_is_silent(task, lengths):
    # The fixture masks spans of 3 bytes.
    assert _check(task.name, lengths).keys() == {"byte_span"}
    assert not _check(task.name, lengths, EVAL, "validation")


def test_target_lengths(data_files):
    pretraining.register_pretraining_task(
        "twenty", data_files=data_files, vocabulary=BYTES, mean_noise_span_length=20.0
    )
    assert not _check("twenty", {"inputs": 64, "targets": 13})
    found = _check("twenty", {"inputs": 64, "targets": 26})["target_length"]
    assert found.severity == "warning" and found.cost == "50% of the decoder's work is on padding"
    use = lint_tasks.Use("train", flops=lambda inputs, targets: inputs + targets)
    assert _check("twenty", {"inputs": 64, "targets": 90}, use)["target_length"].cost.startswith("100% more FLOPs")
    short = _check("twenty", {"inputs": 64, "targets": 10})
    assert short.keys() == {"target_length"} and short["target_length"].severity == "error"
    assert "up to 3 of them" in short["target_length"].cost
    assert "has no length for ['targets']" in _check("twenty", {"inputs": 64})["target_length"].what


def test_sentinels(data_files):
    options = {"data_files": data_files, "mean_noise_span_length": 20.0}
    none = seqio.ByteVocabulary(extra_ids=0)
    pretraining.register_pretraining_task("none", vocabulary=none, **options)
    found = _check("none", {"inputs": 64, "targets": 13})["sentinel_collision"]
    assert "its last 1 pieces, 258" in found.what
    pretraining.register_pretraining_task("few", vocabulary=seqio.ByteVocabulary(extra_ids=2), **options)
    found = _check("few", objectives.span_corruption_lengths(1024, mean_noise_span_length=20.0))
    assert found.keys() == {"too_many_sentinels"}
    assert "needs 9 sentinels, and the vocabulary has 2" in found["too_many_sentinels"].what
    use = lint_tasks.Use("train", embedding_rows=256)
    found = _check("few", {"inputs": 64, "targets": 13}, use)["embedding_rows"]
    assert "makes ids up to 260, and the embedding has 256 rows" in found.what
    # Google's ByT5 in T5's words: bytes that are in no text stand for spans.
    _register("byt5", functools.partial(_texts, 200), (*CORRUPT, *EOS), none)
    assert "sentinel_collision" not in _check("byt5", {"inputs": 64, "targets": 13}, split="train")


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
    assert found.severity == "error" and "began anew after 50 documents" in found.what
    assert "set train.eval_steps" in found.remedy
    found = _check("endless", lengths, lint_tasks.Use("train_eval", 20), "validation")["endless_evaluation"]
    assert found.severity == "warning" and "the 20 batches" in found.cost
    monkeypatch.setattr(lint_tasks, "_MAX_DOCUMENTS", 30)
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


def test_names_that_are_not_there(task, lengths):
    assert "The nearest are 'test_task'" in _check("test_tusk", lengths)["task"].what
    assert "it has 'train', 'validation'" in _check(task.name, lengths, split="test")["split"].what
    assert "is None" in _check(task.name, None)["target_length"].what


def test_other_objectives_of_ours_are_silent(data_files):
    vocabulary = seqio.ByteVocabulary(extra_ids=200)
    for objective in (objectives.PrefixLM(), objectives.FullLM(), objectives.BertStyle(), objectives.Deshuffling()):
        name = type(objective).__name__
        pretraining.register_pretraining_task(name, data_files=data_files, vocabulary=vocabulary, objective=objective)
        config = data.DatasetConfig(name, objectives.lengths(objective, 64), "train", 8)
        converter = "EncDecFeatureConverter" if "inputs" in config.task_feature_lengths else "LMFeatureConverter"
        assert not list(lint_tasks.check(config, converter, TRAIN)), name
    pretraining.register_ul2_mixture("ul2", data_files=data_files, vocabulary=vocabulary)
    assert _check("ul2", objectives.ul2_lengths(512)).keys() <= {"byte_span"}
