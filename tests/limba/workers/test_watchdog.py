"""A step that hangs is named, and ends the run."""

import logging
import multiprocessing
import queue
import threading
import time
import types

import pytest

from limba.workers import watchdog
from limba.workers.watchdog import Watchdog, WatchdogConfig


def test_what_is_usual_decides():
    assert WatchdogConfig(report_factor=10, report_seconds=120).report_after(3.0) == 120
    assert WatchdogConfig(report_factor=10, report_seconds=120).report_after(30.0) == 300


@pytest.mark.parametrize("field", ["report_factor", "report_seconds", "end_seconds"])
@pytest.mark.parametrize("value", [0, -1.0, "60"])
def test_numbers_are_checked(field, value):
    with pytest.raises(ValueError, match=rf"WatchdogConfig.{field} is {value!r}; it is a number above 0"):
        WatchdogConfig(**{field: value})


class _Clock:
    """A watchdog's seconds, and its looks, a tenth of a second apart: nothing here waits."""

    def __init__(self, monkeypatch):
        self.now = self.computed = 0.0
        clock = types.SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(watchdog, "time", clock)
        monkeypatch.setattr(watchdog, "_cpu_seconds", lambda: self.computed)

    def sleep(self, seconds, watch, *, busy=False):
        for _ in range(round(seconds / 0.1)):
            self.now += 0.1
            self.computed += 0.1 * busy
            if watch._has_ended_the_run():
                return


@pytest.fixture
def clock(monkeypatch):
    return _Clock(monkeypatch)


def test_a_hanging_step_is_reported_and_ends_the_run(clock, caplog):
    events = []
    watch = Watchdog(
        WatchdogConfig(report_factor=3.0, report_seconds=2.0, end_seconds=5.0),
        request_stop=lambda reason: events.append(reason),
        rescue=lambda: events.append("rescue"),
        others=lambda: "Worker 3 last reported step 6.",
        end=lambda code: events.append((code, round(clock.now, 1))),
        grace_seconds=2.0,
    )
    with caplog.at_level(logging.ERROR):
        for step in range(1, 8):
            watch.beat(step)
            clock.sleep(0.2, watch)
        assert not caplog.messages
        clock.sleep(600, watch)
    assert events == ["no step for 5 s", "rescue", (76, pytest.approx(1.2 + 7.1, abs=0.11))]
    report = caplog.messages[0]
    assert report.startswith("Step 8 has taken 2 s so far; a step usually takes 0.2 s. Worker 3 last reported step 6.")
    assert "Stacks of all threads:\n--- thread " in report
    assert "--- thread MainThread" in report and "test_watchdog.py" in report
    assert [m.split(" so far")[0] for m in caplog.messages if " so far" in m] == [
        "Step 8 has taken 2 s",
        "Step 8 has taken 4 s",
    ]
    assert caplog.messages[-1].endswith("the run ends with exit code 76. Worker 3 last reported step 6.")


def test_its_thread_ends_a_run(caplog):
    ended = queue.SimpleQueue()
    config = WatchdogConfig(report_factor=1.0, report_seconds=0.04, end_seconds=0.05)
    with Watchdog(config, lambda reason: None, end=ended.put, grace_seconds=0.01) as watch:
        watch.beat(1)
        assert ended.get(timeout=60) == 76
    assert not any(thread.name == "watchdog" for thread in threading.enumerate())


def test_a_run_that_goes_on_is_left_alone(clock, caplog):
    ended, events = [], []
    config = WatchdogConfig(report_factor=3.0, report_seconds=2.0, end_seconds=None)
    watch = Watchdog(config, events.append, end=ended.append)
    with caplog.at_level(logging.ERROR):
        clock.sleep(500, watch)  # Nothing is known before the first step, which compiles.
        for step in range(8):
            watch.beat(step)
            clock.sleep(1.9, watch)
        with watch.paused():
            clock.sleep(600, watch)  # An evaluation.
        clock.sleep(1.0, watch)
        watch.beat(9)
        clock.sleep(5.0, watch)
        assert not caplog.messages
        clock.sleep(600, watch)  # Without a limit it reports, and ends nothing.
        assert caplog.messages
    assert not ended and not events


def test_the_first_batch_may_take_as_long_as_it_is_made_and_the_second_step_as_long_as_the_first(clock, caplog):
    config = WatchdogConfig(report_factor=3.0, report_seconds=3.0, end_seconds=None)
    watch = Watchdog(config, lambda reason: None)
    with caplog.at_level(logging.ERROR):
        with watch.first_wait():
            clock.sleep(10, watch, busy=True)
            clock.sleep(2.9, watch)
            assert not caplog.messages
            clock.sleep(0.3, watch)  # Now nothing is made.
            assert len(caplog.messages) == 1
        caplog.clear()
        watch.beat(1)
        clock.sleep(13, watch)
        assert not caplog.messages
        clock.sleep(0.5, watch)
        assert len(caplog.messages) == 1


def test_stacks_name_threads():
    inside, leave = threading.Event(), threading.Event()

    def wait_for_the_test():
        inside.set()
        leave.wait(10)

    thread = threading.Thread(target=wait_for_the_test, name="reader-3")
    thread.start()
    inside.wait(10)
    found = watchdog.stacks()
    leave.set()
    thread.join()
    assert "--- thread reader-3" in found and "wait_for_the_test" in found


def test_processes_that_read_count_as_this_one_s_work():
    process = multiprocessing.get_context("spawn").Process(target=_calculate, daemon=True)
    before = watchdog._cpu_seconds()
    process.start()
    begun = time.process_time()
    try:
        while watchdog._cpu_seconds() - before < 1.0:
            assert time.process_time() - begun < 0.5 and process.is_alive()
            time.sleep(0.05)
    finally:
        process.kill()


def _calculate():
    while True:
        sum(range(100_000))
