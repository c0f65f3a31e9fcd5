import numpy as np
import pytest

from tasks.pipeline import epoch_counts


def _add(counter, *pairs):
    tasks, numbers = np.array(pairs).T
    counter.add(tasks, numbers)


def test_epochs_are_whole_until_one_has_ended_and_then_have_fractions():
    counter = epoch_counts.EpochCounter()
    assert counter.epochs() == {}
    _add(counter, *[(0, 0)] * 7, (1, 0))
    assert counter.epochs() == {0: 0, 1: 0}
    _add(counter, (0, 0), (0, 1), (0, 1))
    assert counter.epochs() == {0: 1 + 2 / 8, 1: 0}
    # The shuffle buffer still had one of the epoch before.
    _add(counter, (0, 0), (0, 1))
    assert counter.epochs()[0] == 1 + 4 / 8
    _add(counter, *[(0, 1)] * 9)
    assert counter.epochs()[0] == 2.0
    _add(counter, (0, 2), (1, 0))
    assert counter.epochs() == {0: pytest.approx(2 + 1 / 13), 1: 0}


def test_a_new_epoch_counts_from_its_first_example_on():
    """As docs/data.md says: of a buffer with five epochs the first example may be of any."""
    counter = epoch_counts.EpochCounter()
    _add(counter, (0, 4))
    _add(counter, (0, 1), (0, 2))
    assert counter.epochs() == {0: 4}


def test_what_has_no_epoch_is_not_counted():
    counter = epoch_counts.EpochCounter()
    _add(counter, (0, -1), (1, -1))
    counter.add(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert counter.epochs() == {}


def test_a_restored_counter_goes_on():
    counter, other = epoch_counts.EpochCounter(), epoch_counts.EpochCounter()
    _add(counter, (0, 0), (0, 0), (3, 2), (0, 1))
    other.restore(counter.save())
    for one in (counter, other):
        _add(one, (0, 1), (3, 2))
    assert counter.epochs() == other.epochs() == {0: 2.0, 3: 2.0}
