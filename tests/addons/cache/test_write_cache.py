import errno
import functools
import json
import subprocess
import sys

import numpy as np
import pytest

from limba.addons.cache import cached_data, write_cache
from limba.addons.diacritics import diacritics_tasks
from limba.data import contract
from tasks import objectives, pretraining
from tasks.pipeline import task_batches
from tasks.registry.tasks import TaskRegistry
from tasks.sources import corpora
from tasks.vocabularies import ByteVocabulary

SPANS = "inputs=64,targets=14"


def make_cache(directory, name="test_task", split="train", lengths=SPANS):
    write_cache.main([name, "--split", split, "--sequence_length", lengths, "--out", str(directory)])


def open_cache(directory, lengths, **options):
    options = {"split": "train", "batch_size": 8, "seed": 3, **options}
    config = contract.DatasetConfig(options.pop("name", "test_task"), lengths, **options)
    return cached_data.get_dataset(config, 0, 1, "EncDecFeatureConverter", str(directory))


def text_of(rows):
    """The bytes in `[rows, length]` tokens, without sentinels, counted."""
    tokens = np.concatenate([row.ravel() for row in rows])
    return np.bincount(tokens[(tokens >= 3) & (tokens < 259)] - 3, minlength=256)


def test_windows_are_corrupted_anew_in_every_epoch(task, lengths, tmp_path, make_document, places, capsys):
    make_cache(tmp_path / "cache", split="train,validation")
    output = capsys.readouterr().out
    assert "train: " in output and "validation: " in output and "corrupted differently in every epoch" in output
    batches = open_cache(tmp_path / "cache", lengths, batch_size=1)
    size = json.loads((tmp_path / "cache" / "train" / "manifest.json").read_text())["num_examples"]
    epochs = [[next(batches) for _ in range(size)] for _ in range(2)]
    text = "".join(make_document(*place)["text"] for place in places).encode()
    whole = np.bincount(np.frombuffer(text, np.uint8), minlength=256)
    for epoch in epochs:
        counted = text_of(
            [batch[name] for batch in epoch for name in ("encoder_input_tokens", "decoder_target_tokens")]
        )
        # Inputs and targets together are the corpus, but for a single last token that no window holds.
        assert 0 <= (whole - counted).sum() <= 1
    first, second = ({batch["encoder_input_tokens"].tobytes() for batch in epoch} for epoch in epochs)
    assert len(first & second) < 0.1 * len(first)
    # The features of the streaming pipeline, and its lengths and fill.
    streamed = next(task_batches.get_train_batches(contract.DatasetConfig("test_task", lengths, "train", 8, seed=3)))
    cached = next(open_cache(tmp_path / "cache", lengths))
    assert {k: (v.shape, v.dtype) for k, v in cached.items()} == {k: (v.shape, v.dtype) for k, v in streamed.items()}


def test_all_splits_are_checked_before_the_first_is_written(task, tmp_path):
    with pytest.raises(SystemExit, match=r"no split 'valdation'; it has train, .*Did you mean 'validation'\?"):
        make_cache(tmp_path / "cache", split="train,valdation")
    assert not (tmp_path / "cache").exists()


def test_finished_examples_are_those_of_the_evaluation(data_files, tmp_path):
    """Evaluation from the cache and from the task are equal: same examples, same order, same filling."""
    # Sentences without their marks, cut to 130 rows.
    diacritics_tasks.register_diacritics_task(
        "test_pairs", data_files=data_files, vocabulary=ByteVocabulary(100), language=None
    )
    assert _compare_with_evaluation(tmp_path) == 17


def _compare_with_evaluation(folder):
    """The number of batches."""
    lengths = {"inputs": 40, "targets": 30}
    make_cache(folder, "test_pairs", "validation", "inputs=40,targets=30")
    config = contract.DatasetConfig("test_pairs", lengths, "validation", 8)
    ((_, expected),) = task_batches.get_eval_batches(config).items()
    cached = cached_data.get_eval_datasets(config, 0, 1, None, "EncDecFeatureConverter", str(folder))["test_pairs"]
    count = 0
    for a, b in zip(cached, expected, strict=True):
        count += 1
        for name in b:
            np.testing.assert_array_equal(a[name], b[name])
    return count


def test_finished_examples_of_a_task_of_seqio_s(data_files, tmp_path):
    """The same of a task with a user's functions of `tf.data.Dataset`s."""
    import seqio
    import tensorflow as tf

    vocabulary = seqio.ByteVocabulary(100)
    seqio.TaskRegistry.add(
        "test_pairs",
        source=corpora.HuggingFaceSource(data_files),
        preprocessors=[
            lambda ds: ds.map(lambda e: {"inputs": e["text"], "targets": tf.strings.upper(e["text"])}),
            seqio.preprocessors.tokenize,
            seqio.preprocessors.append_eos,
        ],
        output_features={name: seqio.Feature(vocabulary) for name in ("inputs", "targets")},
    )
    assert _compare_with_evaluation(tmp_path) == 4


def test_the_reader_imports_no_tensorflow(task, tmp_path):
    make_cache(tmp_path)
    code = f"""
import sys
from limba.addons.cache import cached_data
from limba.data import contract as data
config = data.DatasetConfig("test_task", {{"inputs": 64, "targets": 14}}, "train", 8, seed=3)
batches = cached_data.get_dataset(config, 0, 1, "EncDecFeatureConverter", {str(tmp_path)!r})
print(next(batches)["encoder_input_tokens"].sum())
assert not {{"tensorflow", "seqio", "datasets", "jax"}} & set(sys.modules), sorted(sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    ours = open_cache(tmp_path, {"inputs": 64, "targets": 14})
    assert int(result.stdout) == next(ours)["encoder_input_tokens"].sum()


def test_interrupted_and_stale_caches(task, corpus, tmp_path, monkeypatch):
    def break_off(*arguments):
        raise KeyboardInterrupt

    def no_space_left(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(write_cache, "_write_features", break_off)
        with pytest.raises(KeyboardInterrupt):
            make_cache(tmp_path)
    with monkeypatch.context() as context:
        context.setattr(write_cache.np, "save", no_space_left)
        with pytest.raises(SystemExit, match=r"error: The cache .*train cannot be written: .*the disk is full"):
            make_cache(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("train")]
    with pytest.raises(FileNotFoundError, match="no finished cache"):
        open_cache(tmp_path, {"inputs": 64, "targets": 14})
    (tmp_path / "train.unfinished").mkdir()
    (tmp_path / "train.unfinished" / "of_a_process_that_was_killed").touch()
    make_cache(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("train*/*")) == [
        "manifest.json",
        "tokens.ends.npy",
        "tokens.tokens",
    ]
    before = (tmp_path / "train" / "manifest.json").stat().st_mtime_ns
    make_cache(tmp_path)  # up to date: nothing is done
    assert (tmp_path / "train" / "manifest.json").stat().st_mtime_ns == before
    with pytest.raises(SystemExit, match=r"task_feature_lengths\.inputs was 64 and is 32"):
        make_cache(tmp_path, lengths="inputs=32,targets=8")
    with (corpus / "train-2.jsonl").open("a") as file:
        file.write('{"text": "one more document", "n": 25}\n')
    with pytest.raises(SystemExit, match=r"cache of other data: .*train-2\.jsonl had \d+ bytes and has \d+"):
        make_cache(tmp_path)
    with pytest.raises(ValueError, match=r"is stale: .*train-2\.jsonl has changed since"):
        open_cache(tmp_path, {"inputs": 64, "targets": 14})
    (tmp_path / "train" / "manifest.json").write_text("{")
    for opens in (make_cache, functools.partial(open_cache, lengths={"inputs": 64, "targets": 14})):
        with pytest.raises((ValueError, SystemExit), match=r"manifest\.json is not JSON.* make it again"):
            opens(tmp_path)
    (tmp_path / "train" / "manifest.json").unlink()
    with pytest.raises(SystemExit, match="train is there, and is not a cache"):
        make_cache(tmp_path)


def test_errors(task, mixture, tmp_path):
    with pytest.raises(SystemExit, match="write it like inputs=512,targets=114"):
        make_cache(tmp_path, lengths="512,114")
    with pytest.raises(SystemExit, match="'test_mixture' is a mixture; cache its tasks one by one"):
        make_cache(tmp_path, "test_mixture")
    with pytest.raises(SystemExit, match="no split 'test'"):
        make_cache(tmp_path, split="test")
    with pytest.raises(SystemExit, match="64 inputs are 14 targets, and 10 would cut them"):
        make_cache(tmp_path, lengths="inputs=64,targets=10")
    with pytest.raises(SystemExit, match="error: There is no task or mixture 'test_tak'"):
        make_cache(tmp_path, "test_tak")
    assert not (tmp_path / "train").exists()


def _register(name, data_files, vocabulary, **options):
    return pretraining.register_pretraining_task(name, data_files=data_files, vocabulary=vocabulary, **options)


def _new_shard(corpus, data_files):
    (corpus / "train-9.jsonl").write_text('{"text": "one more document", "n": 25}\n')
    _register("test_of_today", data_files, ByteVocabulary(100))


def _other_bytes(corpus, data_files):
    _register("test_of_today", data_files, ByteVocabulary(150))


def _other_spans(corpus, data_files):
    _register("test_of_today", data_files, ByteVocabulary(100), objective=objectives.SpanCorruption(0.15, 3.1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_new_shard, r"source\.files\.train-9\.jsonl is new"),
        (_other_bytes, "vocabulary has changed, it had 359 ids and has 409"),
        (_other_spans, "preprocessors was .*mean_noise_span_length=3.0.* and is .*mean_noise_span_length=3.1"),
    ],
)
def test_a_cache_of_the_task_of_yesterday_is_refused(corpus, data_files, tmp_path, change, words):
    """Files, vocabulary and lengths that the cache names are as they were; the task of its name has others."""
    lengths = {"inputs": 64, "targets": 14}
    task = _register("test_of_today", data_files, ByteVocabulary(100))
    make_cache(tmp_path / "cache", "test_of_today")
    first = next(open_cache(tmp_path / "cache", lengths, name="test_of_today"))
    TaskRegistry.remove(task.name)
    assert next(open_cache(tmp_path / "cache", lengths, name="test_of_today")).keys() == first.keys()
    change(corpus, data_files)
    with pytest.raises(
        ValueError, match=rf"is stale: the task 'test_of_today' makes other data now \({words}"
    ) as error:
        open_cache(tmp_path / "cache", lengths, name="test_of_today")
    again = f"limba cache test_of_today --split train --sequence_length {SPANS} --out {tmp_path / 'cache'}"
    assert str(error.value).endswith(again)
    for file in corpus.glob("train-*"):  # a machine that has the cache alone compares what it can
        file.unlink()
    if change is _new_shard:
        open_cache(tmp_path / "cache", lengths, name="test_of_today")
