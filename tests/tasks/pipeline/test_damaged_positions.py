"""Saved positions of readers that are damaged or written by others: one message, and no reader has moved."""

import dataclasses
import json

import numpy as np
import pytest

from limba.data.contract import DatasetConfig
from tasks import pretraining
from tasks.pipeline import task_batches
from tasks.vocabularies import ByteVocabulary

CONFIG = DatasetConfig("damaged", {"inputs": 64, "targets": 32}, "train", 4, seed=0, num_readers=2)


@pytest.fixture
def batches(data_files):
    pretraining.register_pretraining_task("damaged", data_files=data_files, vocabulary=ByteVocabulary(100))
    return task_batches.get_train_batches(CONFIG)


def _set(state, *path_and_value):
    *path, last, value = path_and_value
    for key in path:
        state = state[key]
    state[last] = value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("position"), "lacks counters of a reader"),
        (lambda s: s.pop("fingerprint"), "lacks counters"),
        (lambda s: _set(s, "examples", -1), "lacks counters"),
        (lambda s: _set(s, "rows", 2**60), "lacks counters"),
        (lambda s: _set(s, "batches", "3"), "lacks counters"),
        (lambda s: _set(s, "epochs", {"x": [0, 1, 2]}), "lacks counters"),
        (lambda s: _set(s, "epochs", "0", [0, 1]), "lacks counters"),
        (lambda s: _set(s, "position", "damaged", "taken", None), "lacks counters"),
        (lambda s: _set(s, "position", "damaged", "other", 1), "lacks counters"),
        (lambda s: _set(s, "position", "damaged", "shard", 7), "it is in shard 7 of 'damaged', which has 7"),
        (lambda s: _set(s, "position", "other", s["position"].pop("damaged")), "of 'other', which has 0"),
        (lambda s: _set(s, "fingerprint", "tasks", []), "lacks counters"),
        *(
            (lambda s, x=x: _set(s, "fingerprint", "tasks", "damaged", "vocabulary", x), "lacks counters")
            for x in (2**63, True, "x", {"a": 1}, [1, {}], [[]], [-1])
        ),
        *((lambda s, x=x: _set(s, "fingerprint", "seed", x), "lacks counters") for x in (None, {}, -1, 0.5, "0")),
        (lambda s: _set(s, "position", "damaged", [0]), "lacks counters"),
        (lambda s: _set(s, "fingerprint", "seed", 1), "belongs to other data: seed was 1 and is 0"),
    ],
)
def test_a_damaged_position_is_named_and_moves_nothing(batches, change, words):
    for _ in range(3):
        next(batches)
    state = batches.save_state()
    last = sorted(state)[-1]
    saved = json.loads(state[last])
    change(saved)
    with pytest.raises(ValueError, match=rf"The saved data position \(?{last}.*{words}"):
        batches.restore_state(state | {last: json.dumps(saved).encode()})
    for content in (b"[" * 100_000, b"\xff", b"[]", state[last][:-2]):
        with pytest.raises(ValueError, match=f"The saved data position {last} is damaged"):
            batches.restore_state(state | {last: content})
    following = next(batches)
    batches.restore_state(state)
    for name, values in next(batches).items():
        np.testing.assert_array_equal(values, following[name])


def test_another_batch_size_is_named_where_it_has_other_readers(batches):
    """The default number of readers follows from the batch size."""
    next(batches)
    state = batches.save_state()
    smaller = dataclasses.replace(CONFIG, batch_size=2, num_readers=1)
    with pytest.raises(
        ValueError, match=r"other data: batch_size was 4 and is 2\. Restore the old BATCH_SIZE, or start"
    ):
        task_batches.get_train_batches(smaller).restore_state(state)
    other_readers = dataclasses.replace(CONFIG, num_readers=4)
    with pytest.raises(ValueError, match=r"has no 'reader-0000-of-0004\.json', only .* keep the number of readers"):
        task_batches.get_train_batches(other_readers).restore_state(state)
