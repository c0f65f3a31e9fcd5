"""The time left, by a clock that the test moves."""

import types

import pytest

from limba.reports import progress


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_it_is_that_of_the_last_minutes(clock):
    """On a shared machine a step takes 0.5, 1.5 and 3 seconds in turns, a quarter of a minute each."""
    left, step, found = progress.TimeLeft(100_000, {}), 0, []
    while clock[0] < 4600.0:
        clock[0] += (0.5, 1.5, 3.0)[int(clock[0] // 15) % 3]
        step += 1
        left.step_done(step)
        if clock[0] > 1400.0:
            found.append(left.seconds(step) / (100_000 - step))
    mean = 3 / (1 / 0.5 + 1 / 1.5 + 1 / 3.0)
    assert min(found) > 0.85 * mean and max(found) < 1.15 * mean
    for _ in range(1000):  # The others have left: five minutes later it is known.
        clock[0] += 0.4
        step += 1
        left.step_done(step)
    assert left.seconds(step) / (100_000 - step) == pytest.approx(0.4, rel=0.01)


def test_evaluations_and_checkpoints_are_counted_once_there_was_one(clock):
    due = {"evaluation": lambda step: (100 - step) // 20, "checkpoint": lambda step: (100 - step) // 50}
    left = progress.TimeLeft(100, due)
    assert left.seconds(0) is None and left.shown(0) == "?"
    for step in range(1, 51):
        clock[0] += 2.0
        left.step_done(step)
        if step == 10:
            assert left.seconds(10) == 2.0 * 90
        if step % 20 == 0:
            with left.pause("evaluation"):
                clock[0] += 30.0 if step == 20 else 50.0
            assert left.seconds(step) == pytest.approx({20: 2.0 * 80 + 4 * 30.0, 40: 2.0 * 60 + 3 * 40.0}[step])
    with left.pause("checkpoint"):
        clock[0] += 7.0
    with left.pause(None):  # as the compilation of another stage
        clock[0] += 1000.0
    assert left.seconds(50) == pytest.approx(2.0 * 50 + 2 * 40.0 + 7.0) and left.shown(50) == "03:07"
