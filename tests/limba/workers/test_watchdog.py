"""A step that hangs is named, and ends the run."""

import logging
import multiprocessing
import threading
import time

import pytest

from limba.workers import watchdog
from limba.workers.watchdog import Watchdog, WatchdogConfig

QUICK = WatchdogConfig(report_factor=3.0, report_seconds=0.2, end_seconds=0.5)


def _wait_until(condition, seconds=10.0):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)


def test_what_is_usual_decides():
    assert WatchdogConfig(report_factor=10, report_seconds=120).report_after(3.0) == 120
    assert WatchdogConfig(report_factor=10, report_seconds=120).report_after(30.0) == 300


@pytest.mark.parametrize("field", ["report_factor", "report_seconds", "end_seconds"])
@pytest.mark.parametrize("value", [0, -1.0, "60"])
def test_numbers_are_checked(field, value):
    with pytest.raises(ValueError, match=rf"WatchdogConfig.{field} is {value!r}; it must be a number above 0"):
        WatchdogConfig(**{field: value})


def test_a_hanging_step_is_reported_and_ends_the_run(caplog):
    events = []
    watch = Watchdog(
        QUICK,
        request_stop=lambda reason: events.append(reason.split()[:2]),
        rescue=lambda: events.append("rescue"),
        others=lambda: "Worker 3 last reported step 6.",
        end=events.append,
        grace_seconds=0.2,
    )
    with caplog.at_level(logging.ERROR), watch:
        for step in range(1, 8):
            watch.beat(step)
            time.sleep(0.02)
        _wait_until(lambda: events == [["no", "step"], "rescue", 76])
    report = caplog.messages[0]
    assert report.startswith("Step 8 has taken ")
    assert "a step usually takes 0.02" in report and "Worker 3 last reported step 6. Stacks of all threads:" in report
    assert "--- thread MainThread" in report and "test_watchdog.py" in report and "_wait_until" in report
    assert caplog.messages[-1].endswith("the run ends with exit code 76. Worker 3 last reported step 6.")


def test_a_run_that_goes_on_is_left_alone(caplog):
    ended, events = [], []
    config = WatchdogConfig(report_factor=3.0, report_seconds=0.2, end_seconds=None)
    with caplog.at_level(logging.ERROR), Watchdog(config, events.append, end=ended.append) as watch:
        time.sleep(0.5)  # Nothing is known before the first step, which compiles.
        for step in range(8):
            watch.beat(step)
            time.sleep(0.05)
        with watch.paused():
            time.sleep(0.6)  # An evaluation.
        time.sleep(0.05)
        watch.beat(9)
        assert not caplog.messages
        _wait_until(lambda: caplog.messages)  # Without a limit it reports, and ends nothing.
        time.sleep(0.3)
    assert not ended and not events and not any(thread.name == "watchdog" for thread in threading.enumerate())


def test_the_first_batch_may_take_as_long_as_it_is_made_and_the_second_step_as_long_as_the_first(caplog, monkeypatch):
    busy_until = time.monotonic() + 1.0
    monkeypatch.setattr(watchdog, "_cpu_seconds", lambda: min(time.monotonic(), busy_until))
    config = WatchdogConfig(report_factor=3.0, report_seconds=0.3, end_seconds=None)
    with caplog.at_level(logging.ERROR), Watchdog(config, lambda reason: None) as watch:
        with watch.first_wait():
            time.sleep(max(0.0, busy_until - time.monotonic()))
            assert not caplog.messages
            _wait_until(lambda: caplog.messages)  # Now nothing is made.
        caplog.clear()
        watch.beat(1)
        time.sleep(0.8)
        assert not caplog.messages
        _wait_until(lambda: caplog.messages)


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
