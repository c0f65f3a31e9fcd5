"""Streams of sources of SeqIO's and data sets of a user's own: saved by TensorFlow, or read again."""

import dataclasses
import io
import json
import logging
import types
import zipfile

import pytest
import seqio
import tensorflow as tf

from limba.addons.seqio import foreign_readers, seqio_predictions
from limba.data import contract
from limba.inference import tasks_door
from tasks.pipeline import task_batches
from tests.addons.seqio.conftest import STEPS
from tests.addons.seqio.test_seqio_streams import assert_equal, take

LENGTHS = {"inputs": 16, "targets": 16}


def config_for(name, **options):
    options = {"split": "train", "batch_size": 8, "num_readers": 4, "seed": 3, **options}
    return contract.DatasetConfig(name, LENGTHS, **options)


def test_t5x_style_task_that_can_be_saved(register_with_seqio, text_files, monkeypatch):
    config = config_for(register_with_seqio("test_lines", text_files).name)
    batches = task_batches.get_train_batches(config)
    take(batches, 40)
    state = batches.save_state()
    expected = take(batches, 20)
    restored = task_batches.get_train_batches(config)
    restored.restore_state(state)
    assert_equal(take(restored, 20), expected)
    with pytest.raises(ValueError, match="seed was 3 and is 4"):
        task_batches.get_train_batches(dataclasses.replace(config, seed=4)).restore_state(state)
    with pytest.raises(ValueError, match="damaged"):
        batches.restore_state({name: content[:100] for name, content in state.items()})
    with zipfile.ZipFile(hostile := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("position.json", "{}")
        archive.writestr("../elsewhere", "x")
    with pytest.raises(ValueError, match=r"it has a file \.\./elsewhere"):
        batches.restore_state(dict.fromkeys(state, hostile.getvalue()))
    header = {"batches": 1, "fingerprint": {"seed": 3, "tasks": {}}}
    for wrong in ({"batches": None}, {"batches": "1"}, {"fingerprint": []}, {"fingerprint": {"seed": 3}}):
        other = foreign_readers._zip({"position.json": json.dumps(header | wrong).encode()})
        with pytest.raises(ValueError, match=r"reader-0000-of-0004\.zip is damaged: position\.json"):
            batches.restore_state(dict.fromkeys(state, other))
    monkeypatch.setattr(foreign_readers.storage, "MOST_BYTES", 1)
    with pytest.raises(ValueError, match=r"it unpacks to [\d,]+ bytes"):
        batches.restore_state(state)


def test_an_error_of_a_generator_is_one_line(register_with_seqio):
    """Not TensorFlow's, which has a traceback as text."""

    def generate(split, shuffle_files, seed=None):
        del split, shuffle_files, seed

        def rows():
            raise FileNotFoundError("Dataset 'org/private' cannot be accessed.")
            yield

        return tf.data.Dataset.from_generator(rows, output_signature={"text": tf.TensorSpec([], tf.string)})

    register_with_seqio("test_failing", seqio.FunctionDataSource(generate, splits=["train"]))
    message = (
        "Reading 'test_failing' failed after 0 batches: FileNotFoundError: Dataset 'org/private' cannot be accessed."
    )
    with pytest.raises(RuntimeError) as caught:
        task_batches.get_train_batches(config_for("test_failing", num_readers=1))
    assert str(caught.value) == message


def test_t5x_style_generator_is_read_again_and_says_so(register_with_seqio, caplog):
    def generate(split, shuffle_files, seed=None):
        del split, shuffle_files, seed
        return tf.data.Dataset.from_generator(
            lambda: ({"text": f"line {i}"} for i in range(100)), output_signature={"text": tf.TensorSpec([], tf.string)}
        )

    register_with_seqio("test_generator", seqio.FunctionDataSource(generate, splits=["train"]))
    config = config_for("test_generator", num_readers=2)
    assert tasks_door.facts(config)["source of test_generator"] == "FunctionDataSource"
    with caplog.at_level(logging.WARNING):
        batches = task_batches.get_train_batches(config)
    assert "cannot be saved" in caplog.text
    assert "too few shards (1) for 2 readers" in caplog.text
    assert len(task_batches.get_train_batches(dataclasses.replace(config, num_readers=None)).save_state()) == 1
    take(batches, 5)
    state = batches.save_state()
    expected = take(batches, 5)
    restored = task_batches.get_train_batches(config)
    restored.restore_state(state)
    assert "reads 5 batches again" in caplog.text
    assert_equal(take(restored, 5), expected)


def _lines(texts):
    return seqio.FunctionDataSource(
        lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
            {"text": tf.constant(texts, tf.string)}
        ),
        splits=["train", "validation"],
    )


def _three_fields(dataset):
    return dataset.map(lambda x: {"text": tf.io.decode_csv(x["text"], ["", "", ""])[2]})


def test_what_a_user_s_step_does_is_one_line(register_with_seqio):
    register_with_seqio("test_odd_step", _lines(["a", "b"]), [_three_fields, *STEPS])
    with pytest.raises(
        RuntimeError, match=r"^Reading 'test_odd_step' failed after 0 batches: Expect 3 fields but have 1"
    ):
        task_batches.get_train_batches(config_for("test_odd_step", num_readers=1))


def test_an_endless_stream_that_ends_is_named(register_with_seqio):
    """TensorFlow ends it where an epoch gives nothing."""
    register_with_seqio("test_ended", _lines(["a", "b"]))
    batches = task_batches.get_train_batches(config_for("test_ended", num_readers=1))
    (reader,) = batches._readers
    reader._pipeline = types.SimpleNamespace(iterator=iter(()))
    with pytest.raises(
        RuntimeError, match="batches: No example can be made of split 'train' of a task of 'test_ended'"
    ):
        next(reader)


def test_a_split_without_examples_is_named_before_the_training(register_with_seqio):
    source = seqio.FunctionDataSource(
        lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
            {"text": tf.constant([], tf.string)}
        ),
        splits=["validation"],
    )
    task = register_with_seqio("test_nothing", source, metric_fns=[lambda targets, predictions: {}])
    config = config_for(task.name, split="validation")
    with pytest.raises(ValueError, match="Split 'validation' of task 'test_nothing' has no examples to evaluate"):
        seqio_predictions.make_evaluator(config, None, "EncDecFeatureConverter", None, lambda _: None, {})


def test_files_that_were_never_made_are_named(register_with_seqio, text_files, monkeypatch):
    def no_files(split):
        raise KeyError(f"`splits` has no {split}")

    monkeypatch.setattr(text_files, "list_shards", no_files)
    task = register_with_seqio("test_no_files", text_files)
    with pytest.raises(ValueError, match="The files of task 'test_no_files' cannot be listed: `splits` has no train"):
        task_batches.get_train_batches(config_for(task.name, num_readers=None))


def _model_batches(num_batches):
    """Numbered batches as a `get_dataset_fn` of T5X's users makes them."""
    numbers = tf.data.Dataset.range(8 * num_batches, output_type=tf.int32).batch(8)
    return numbers.map(lambda x: {"decoder_target_tokens": x[:, tf.newaxis]})


@pytest.mark.parametrize("can_save", [True, False])
def test_a_data_set_of_a_users_own_is_endless_and_resumed(can_save, caplog):
    config = config_for("any")
    dataset = _model_batches(3)
    if not can_save:
        dataset = dataset.map(lambda x: {k: tf.py_function(lambda v: v, [v], tf.int32) for k, v in x.items()})
    batches = foreign_readers.DatasetBatches(dataset, config, 0, 1)
    first = [next(batches)["decoder_target_tokens"][0, 0] for _ in range(5)]
    assert first == [0, 8, 16, 0, 8]
    state = batches.save_state()
    assert ("cannot be saved" in caplog.text) is not can_save
    resumed = foreign_readers.DatasetBatches(dataset, config, 0, 1)
    resumed.restore_state(state)
    assert next(resumed)["decoder_target_tokens"][0, 0] == next(batches)["decoder_target_tokens"][0, 0] == 16
    ((name, content),) = state.items()
    files = foreign_readers._unzip(content, name)
    changes = [{"batches.json": x} for x in (b"", b"{}", b'"a"', b"-1", b"1e400", b"null", b"[" * 100_000, b"\xff")]
    changes += [{file: b""} for file in files if can_save and file != "batches.json"]
    for change in changes:
        with pytest.raises(ValueError, match=f"The saved data position {name} is damaged"):
            resumed.restore_state({name: foreign_readers._zip(files | change)})
    with pytest.raises(ValueError, match="number of hosts"):
        foreign_readers.DatasetBatches(dataset, config, 1, 2).restore_state(state)
    with pytest.raises(ValueError, match=r"get_dataset_fn returned a list for 'any'.*tf.data.Dataset"):
        foreign_readers.DatasetBatches([], config, 0, 1)
