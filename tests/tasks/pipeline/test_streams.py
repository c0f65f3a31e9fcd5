"""Parts of rows that are cut anew, and skipped."""

import numpy as np
import pytest

from tasks.pipeline import streams
from tasks.registry.rows import Tokens


def _part(numbers):
    """Rows with a number, a text and as many tokens as the number's last digit says."""
    return {
        "number": np.array(numbers, np.int64),
        "text": np.array([str(n).encode() for n in numbers], object),
        "tokens": Tokens.of([[n] * (n % 10) for n in numbers]),
    }


def _numbers(part):
    """The numbers of rows, after checking that the other columns belong to them."""
    assert [int(text) for text in part["text"]] == part["number"].tolist()
    assert part["tokens"].lengths.tolist() == [n % 10 for n in part["number"]]
    for row, n in zip(part["tokens"].padded.tolist(), part["number"].tolist(), strict=True):
        assert row == [n] * (n % 10) + [0] * (len(row) - n % 10)
    return part["number"].tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 100])
@pytest.mark.parametrize("sizes", [[5, 0, 1, 9, 2], [0, 0], [], [20], [1] * 17, [3, 7, 0]])
def test_rebatch(sizes, size):
    ends = np.cumsum([0, *sizes])
    parts = [_part(range(a + 11, b + 11)) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    found = [_numbers(part) for part in streams.rebatch(parts, size)]
    count = sum(sizes)
    assert [len(x) for x in found] == [size] * (count // size) + [count % size] * (count % size > 0)
    assert [n for part in found for n in part] == list(range(11, 11 + count))


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 11, 16, 17, 30])
def test_skip(count):
    parts = [_part(range(5)), _part(range(5, 5)), _part(range(5, 16)), _part([16])]
    found = [_numbers(part) for part in streams.skip(parts, count)]
    assert [n for part in found for n in part] == list(range(17))[count:]


def test_rows_are_made_only_when_they_are_asked_for():
    made = []

    def parts():
        for i in range(100):
            made.append(i)
            yield _part([2 * i, 2 * i + 1])

    batches = streams.skip(streams.rebatch(parts(), 3), 3)
    assert _numbers(next(batches)) == [3, 4, 5] and len(made) == 3
