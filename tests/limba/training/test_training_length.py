import itertools

import numpy as np
import pytest

from limba.data.contract import DatasetConfig
from limba.training import training_length

CONFIG = DatasetConfig("mixed", {"inputs": 4, "targets": 4}, "train", 8, shuffle=True, num_readers=4)


def _batch(rows):
    weights = np.zeros((8, 4), np.int32)
    weights[:rows, :2] = 1
    return {"decoder_loss_weights": weights}


def _count(sets, **options):
    def get_dataset(config, shard_id, num_shards, eval_steps, feature_converter_cls):
        assert (config.shuffle, config.use_memory_cache, shard_id, num_shards, eval_steps) == (False, False, 0, 1, None)
        assert feature_converter_cls == "converter"
        return sets

    return training_length.count_rows(CONFIG, get_dataset, "converter", **options)


def test_rows_of_all_tasks_are_counted_without_what_fills_up():
    # The mixture itself ends with its first task, and would count rows twice.
    assert _count({"a": [_batch(8), _batch(3)], "b": [_batch(5)], "mixed": [_batch(8)]}) == 16
    assert _count({"mixed": [_batch(8), _batch(1)]}) == 9


@pytest.mark.parametrize(("number", "rows", "steps"), [(3, 16, 6), (0.5, 16, 1), (1, 17, 3), (2.5, 100, 32)])
def test_the_last_batch_is_whole(number, rows, steps):
    assert training_length.steps_of(number, rows, 8) == steps


def test_what_has_no_end_and_what_is_empty():
    with pytest.raises(ValueError, match=r"'train' split of 'mixed' has more than 20 rows, or no end.*TRAIN_STEPS"):
        _count({"mixed": itertools.repeat(_batch(8))}, most=20)
    with pytest.raises(ValueError, match="'train' split of 'mixed' has no row"):
        _count({"mixed": [_batch(0)]})


@pytest.mark.parametrize(
    ("number", "relative_steps", "words"),
    [(0, None, "is 0; it is"), ("3", None, "is '3'"), (True, None, "is True"), (float("inf"), None, "is inf"),
     (3, 10, "give one of the two")],
)  # fmt: skip
def test_numbers_that_are_none(number, relative_steps, words):
    with pytest.raises(ValueError, match=words):
        training_length.check_epochs(number, relative_steps)


def _length(total_steps=10, relative_steps=None, epochs=None, first_step=4, resumed=False, record=None):
    return training_length.find_length(
        total_steps, relative_steps, epochs, first_step, resumed, record or {}, 8, count=lambda: 24
    )


_RECORD = {"initial_step": 4, "rows_per_epoch": 16}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (4, 10, None)),
        ({"relative_steps": 5}, (4, 9, None)),
        ({"relative_steps": 5, "first_step": 7, "resumed": True, "record": _RECORD}, (4, 9, None)),
        ({"epochs": 2}, (4, 10, 24)),
        ({"epochs": 2, "first_step": 6, "resumed": True, "record": _RECORD}, (4, 8, 16)),
        ({"first_step": 12, "resumed": True}, (12, 10, None)),
    ],
)  # fmt: skip
def test_a_resumed_run_ends_where_it_would_have_ended(given, expected):
    length = _length(**given)
    assert (length.initial_step, length.total_steps, length.rows_per_epoch) == expected


def test_an_initial_checkpoint_beyond_the_end():
    with pytest.raises(ValueError, match=r"train\.total_steps .* is 10, and the initial checkpoint is at step 12"):
        _length(first_step=12)


def test_a_float_of_a_whole_number_is_answered_with_the_number():
    with pytest.raises(
        ValueError, match=r"train\.total_steps \(TRAIN_STEPS\) is 1000\.0; .* of at least 1: write 1000\.$"
    ):
        training_length.check_step_counts(1e3, None, None, None, 10, None)
    with pytest.raises(ValueError, match=r"train\.eval_period \(EVAL_PERIOD\) is 0; it is a whole number .* 1\.$"):
        training_length.check_step_counts(10, None, None, None, 0, None)
