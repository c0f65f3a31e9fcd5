"""Parts of rows that are cut anew, and skipped."""

import numpy as np
import pytest

from tasks.pipeline import streams
from tests.tasks.registry import numbered_rows


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 100])
@pytest.mark.parametrize("sizes", [[5, 0, 1, 9, 2], [0, 0], [], [20], [1] * 17, [3, 7, 0]])
def test_rebatch(sizes, size):
    ends = np.cumsum([0, *sizes])
    parts = [
        numbered_rows.part(range(a + 11, b + 11)) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    ]
    found = [numbered_rows.numbers(part) for part in streams.rebatch(parts, size)]
    count = sum(sizes)
    assert [len(x) for x in found] == [size] * (count // size) + [count % size] * (count % size > 0)
    assert [n for part in found for n in part] == list(range(11, 11 + count))


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 11, 16, 17, 30])
def test_skip(count):
    parts = [
        numbered_rows.part(range(5)),
        numbered_rows.part(range(5, 5)),
        numbered_rows.part(range(5, 16)),
        numbered_rows.part([16]),
    ]
    found = [numbered_rows.numbers(part) for part in streams.skip(parts, count)]
    assert [n for part in found for n in part] == list(range(17))[count:]


def test_rows_are_made_only_when_they_are_asked_for():
    made = []

    def parts():
        for i in range(100):
            made.append(i)
            yield numbered_rows.part([2 * i, 2 * i + 1])

    batches = streams.skip(streams.rebatch(parts(), 3), 3)
    assert numbered_rows.numbers(next(batches)) == [3, 4, 5] and len(made) == 3
