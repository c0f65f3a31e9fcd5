"""The queue: what is run together, and what becomes of the rest."""

import threading
import time
import types
from concurrent.futures import CancelledError

import pytest

from limba.addons.serve import batcher as batcher_module
from limba.addons.serve.batcher import Batcher, QueueFullError


class _Model:
    """Squares numbers; a gate holds it up."""

    def __init__(self):
        self.batches, self.gate = [], threading.Event()
        self.gate.set()

    def run(self, items):
        self.gate.wait(20)
        self.batches.append(list(items))
        if 13 in items:
            raise ZeroDivisionError("13")
        return [item**2 for item in items]


@pytest.fixture
def model():
    return _Model()


def _held(model, **options):
    """A batcher whose model is busy with 0, until its gate opens."""
    made = Batcher(model.run, **{"max_batch": 4, "max_wait_s": 0, "max_queue": 8, **options})
    model.gate.clear()
    (first,) = made.submit([("busy", 0)])
    while not first.running():
        time.sleep(0.001)
    return made


def test_items_of_a_kind_are_run_together_the_oldest_first(model):
    batcher = _held(model)
    kinds = ["a", "b", "a", "a", "b", "a", "a"]
    results = batcher.submit([(kind, number) for number, kind in enumerate(kinds, 1)])
    assert len(batcher) == 7
    model.gate.set()
    assert [result.result(20) for result in results] == [1, 4, 9, 16, 25, 36, 49]
    assert model.batches == [[0], [1, 3, 4, 6], [2, 5], [7]]
    batcher.close()


def test_the_oldest_waits_for_others_but_not_longer_than_it_may(model):
    batcher = Batcher(model.run, max_batch=3, max_wait_s=0.3, max_queue=8)
    begun = time.monotonic()
    results = [batcher.submit([("a", number)])[0] for number in (1, 2)]
    assert [result.result(20) for result in results] == [1, 4]
    assert model.batches == [[1, 2]] and time.monotonic() - begun >= 0.3
    batcher.close()


def test_a_full_batch_does_not_wait(model):
    batcher = Batcher(model.run, max_batch=3, max_wait_s=600, max_queue=8)
    results = batcher.submit([("a", number) for number in (1, 2, 3)])
    assert [result.result(60) for result in results] == [1, 4, 9]
    batcher.close()


def test_a_full_queue_takes_all_of_a_request_or_nothing(model):
    batcher = _held(model, max_queue=3)
    first = batcher.submit([("a", 1), ("a", 2)])
    with pytest.raises(QueueFullError):
        batcher.submit([("a", 3), ("a", 4)])
    assert len(batcher) == 2
    assert first[1].cancel(), "what is cancelled leaves its place"
    last = batcher.submit([("a", 5), ("a", 6)])
    model.gate.set()
    assert [result.result(20) for result in (first[0], *last)] == [1, 25, 36]
    with pytest.raises(CancelledError):
        first[1].result(20)
    assert model.batches == [[0], [1, 5, 6]]
    batcher.close()


def test_an_error_is_that_of_its_batch_and_the_next_is_run(model):
    batcher = _held(model, max_batch=2)
    results = batcher.submit([("a", 13), ("a", 2), ("a", 3)])
    model.gate.set()
    for result in results[:2]:
        with pytest.raises(ZeroDivisionError, match="13"):
            result.result(20)
    assert results[2].result(20) == 9
    batcher.close()


def test_closing_runs_what_waits_and_takes_no_more(model):
    batcher = Batcher(model.run, max_batch=4, max_wait_s=60, max_queue=8)
    results = batcher.submit([("a", 1), ("b", 2)])
    batcher.close()
    assert [result.result(0) for result in results] == [1, 4]
    with pytest.raises(QueueFullError):
        batcher.submit([("a", 1)])


def test_one_that_comes_with_many_does_not_wait_for_all_of_them(monkeypatch):
    now, gate, batches = [0.0], threading.Event(), []
    monkeypatch.setattr(batcher_module, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def run(items):
        batches.append(items)
        if len(batches) == 1:
            assert gate.wait(20)
        now[0] += 1
        return items

    made = Batcher(run, max_batch=2, max_wait_s=0, max_queue=64)
    results = made.submit([("many", number) for number in range(8)])
    while not batches:
        pass
    now[0] = 0.5
    results += made.submit([("one", "one")])
    now[0] = 0.6
    results += made.submit([("late", "late")])
    gate.set()
    assert [result.result(20) for result in results] == [*range(8), "one", "late"]
    assert batches == [[0, 1], ["one"], ["late"], [2, 3], [4, 5], [6, 7]]
    made.close()
