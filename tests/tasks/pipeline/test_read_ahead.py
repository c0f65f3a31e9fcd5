"""The thread that makes items in advance."""

import functools
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from limba.data.contract import ReadingStoppedError
from tasks.pipeline.readers import ReadAhead


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_items_come_in_order_and_end_again_and_again():
    ahead = ReadAhead(range(50), 3)
    assert list(ahead) == list(range(50))
    assert list(ahead) == [] and next(ahead, "end") == "end"


def test_it_makes_no_more_than_asked_for():
    made = []
    ahead = ReadAhead((made.append(i) or i for i in range(100)), 4)
    assert not made  # Nothing before the first is asked for.
    assert next(ahead) == 0
    # 4 that wait and the one that does not fit.
    wait_for(lambda: len(made) == 6)
    time.sleep(0.2)
    assert made == list(range(6))
    ahead.close()
    ahead.join(20)
    assert not ahead._thread.is_alive() and len(made) <= 7


def test_an_error_is_raised_where_it_occurs_and_again():
    def items():
        yield from range(3)
        raise KeyError("the fourth")

    ahead = ReadAhead(items(), 2)
    assert [next(ahead) for _ in range(3)] == [0, 1, 2]
    for _ in range(3):
        with pytest.raises(KeyError, match="the fourth"):
            next(ahead)


def test_closing_one_that_never_began():
    ahead = ReadAhead(range(3), 1)
    ahead.close()
    ahead.join(1)
    assert ahead._thread.ident is None


def test_several_are_independent():
    evens, odds = ReadAhead(itertools.count(0, 2), 2), ReadAhead(itertools.count(1, 2), 5)
    assert [next(x) for _ in range(20) for x in (evens, odds)] == list(range(40))
    evens.close()
    assert next(odds) == 41
    odds.close()


def test_a_process_ends_while_it_reads():
    """Neither one that waits for its consumer, nor one that waits for its items for long, keeps the process."""
    code = """
import itertools, time
from limba.data.contract import ReadingStoppedError
from tasks.pipeline.readers import ReadAhead
def slow():
    yield 0
    time.sleep(600)
readers = [ReadAhead(itertools.count(), 3), ReadAhead(slow(), 3), ReadAhead(range(9), 3)]
print([next(reader) for reader in readers])
"""
    began = time.monotonic()
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "[0, 0, 0]" and not result.stderr
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("by_a_signal", [False, True])
def test_a_wait_can_be_ended_and_a_batch_that_is_there_still_comes(by_a_signal):
    release = threading.Event()

    def items():
        yield 0
        release.wait(20)
        yield 1

    ahead = ReadAhead(items(), 2)
    assert next(ahead) == 0
    before = signal.signal(signal.SIGUSR1, lambda *_: ahead.stop_waiting())
    end = functools.partial(os.kill, os.getpid(), signal.SIGUSR1) if by_a_signal else ahead.stop_waiting
    threading.Timer(0.1, end).start()
    try:
        with pytest.raises(ReadingStoppedError):
            next(ahead)
    finally:
        signal.signal(signal.SIGUSR1, before)
    release.set()
    wait_for(lambda: ahead._made)
    assert next(ahead) == 1
