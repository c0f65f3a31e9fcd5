"""Streams of sources of SeqIO's and data sets of a user's own: saved by TensorFlow, or read again."""

import dataclasses
import logging

import pytest
import seqio
import tensorflow as tf

from limba.data import contract
from limba.inference import tasks_door
from tasks.pipeline import task_batches
from tasks.pipeline.seqio import foreign_readers
from tests.tasks.pipeline.seqio.test_seqio_streams import assert_equal, take

LENGTHS = {"inputs": 16, "targets": 16}


def config_for(name, **options):
    options = {"split": "train", "batch_size": 8, "num_readers": 4, "seed": 3, **options}
    return contract.DatasetConfig(name, LENGTHS, **options)


def test_t5x_style_task_that_can_be_saved(register_with_seqio, text_files):
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
            lambda: ({"text": f"line {i}"} for i in range(100)),
            output_signature={"text": tf.TensorSpec([], tf.string)},
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
    with pytest.raises(ValueError, match="number of hosts"):
        foreign_readers.DatasetBatches(dataset, config, 1, 2).restore_state(state)
    with pytest.raises(ValueError, match=r"get_dataset_fn returned a list for 'any'.*tf.data.Dataset"):
        foreign_readers.DatasetBatches([], config, 0, 1)
