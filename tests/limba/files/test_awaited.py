"""Long waits are named."""

import logging
import queue
import types

from limba.files import awaited


def _messages(records):
    return [record.getMessage() for record in records if record.name == awaited.__name__]


def test_a_long_wait_is_named_once_until_it_has_doubled(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    clock = types.SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(awaited, "time", clock)
    monkeypatch.setattr(awaited, "_waits", {})
    monkeypatch.setattr(awaited, "_watching", types.SimpleNamespace(acquire=lambda blocking: False))
    said = 0.0

    def sleep(seconds):
        nonlocal said
        for _ in range(round(seconds / 0.5)):
            clock.now += 0.5
            said = awaited._name_waits(said, clock.now)
        found = _messages(caplog.records)
        caplog.clear()
        return found

    with awaited.named("the first batch", usual=10.0):
        assert sleep(9.5) == []
    with awaited.named("a batch of 'my_corpus' for step 8", usual=10.0):
        assert sleep(1.0) == []
        with awaited.named("https://example.org/part-0001.gz"):
            assert sleep(3.5) == []
            with awaited.named("something that comes"):
                batch, part = "a batch of 'my_corpus' for step 8", "https://example.org/part-0001.gz"
                assert sleep(1.0) == [f"Waiting for {batch} (5 s), for {part} (4 s)."]
            assert sleep(3.0) == []
            assert sleep(0.5) == [f"Waiting for {batch} (9 s), for {part} (8 s)."]
        assert sleep(0.5) == []
    assert sleep(10) == []
    with awaited.named("the next"):
        assert sleep(3.5) == [] and sleep(0.5) == ["Waiting for the next (4 s)."]


def test_a_thread_of_its_own_looks(monkeypatch):
    looks = queue.SimpleQueue()
    monkeypatch.setattr(awaited, "_FIRST_SECONDS", 0.0)
    monkeypatch.setattr(awaited, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(awaited.logger, "info", lambda message, waits: looks.put(waits))
    with awaited.named("a file"):
        while "a file (" not in looks.get(timeout=60):
            pass
