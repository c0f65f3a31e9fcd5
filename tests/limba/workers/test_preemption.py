"""Signals are heard, also while the main thread is in another library."""

import ctypes
import os
import select
import signal
import struct
import threading
import time

import pytest

from limba.workers.preemption import StopBeforeSteps, StopRequest


class _InC:
    """What `leave` ends from another thread: a wait in C, as a compiler's.

    It is deaf to signals: another thread gets them, and Python's handlers must wait.
    """

    def __init__(self):
        self._reads, self._writes = os.pipe()

    def leave(self) -> None:
        os.write(self._writes, b".")

    def wait_for_signal(self, signum: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signum})
        threading.Timer(0.1, os.kill, (os.getpid(), signum)).start()
        try:
            # The file, what it is asked for (POLLIN) and what it tells: `struct pollfd`. The number is milliseconds.
            asked = struct.pack("ihh", self._reads, select.POLLIN, 0)
            assert ctypes.CDLL(None).poll(asked, 1, 60_000) == 1, "nobody came"
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
            os.close(self._reads)
            os.close(self._writes)


def test_a_signal_is_heard_while_the_main_thread_is_elsewhere():
    heard, in_c = [], _InC()

    def rescue():
        heard.append(("rescue", time.monotonic()))
        in_c.leave()

    stop = StopRequest(
        interrupt=lambda: heard.append(("interrupt", time.monotonic())), rescue=rescue, grace_seconds=0.3
    )
    with stop:
        in_c.wait_for_signal(signal.SIGTERM)
        assert stop.is_due(0)
    assert [kind for kind, _ in heard] == ["interrupt", "rescue"] and heard[1][1] - heard[0][1] >= 0.3
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_before_the_steps_a_signal_ends_the_process(caplog):
    left = []
    with pytest.raises(SystemExit) as stop, StopBeforeSteps(lambda: left.append(1), grace_seconds=0.2):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    assert stop.value.code == 75 and not left and "Stopped on request" in caplog.text
    in_c = _InC()
    with pytest.raises(SystemExit), StopBeforeSteps(in_c.leave, grace_seconds=0.2):
        in_c.wait_for_signal(signal.SIGTERM)  # It is in a library.
        time.sleep(30)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_loop_that_notices_is_not_rescued():
    rescues = []
    with StopRequest(rescue=lambda: rescues.append(1), grace_seconds=0.2) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_due(0) and stop.is_requested
    time.sleep(0.4)
    assert not rescues


def test_the_second_ctrl_c_interrupts():
    interrupts = []
    with StopRequest(interrupt=lambda: interrupts.append(1)) as stop:
        assert not stop.is_requested
        os.kill(os.getpid(), signal.SIGINT)
        while not interrupts:  # the thread may hear it before this one does
            time.sleep(0.01)
        assert stop.is_requested and interrupts == [1]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
    assert interrupts == [1]


def test_other_signals_are_left_alone():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0.1)
            assert seen == [1] and not stop.is_requested
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.is_requested
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_request_of_the_run_itself_interrupts_nothing():
    interrupts = []
    with StopRequest(interrupt=lambda: interrupts.append(1), grace_seconds=0.05) as stop:
        stop.request("no step for 1800 s")
        time.sleep(0.2)
        assert stop.is_due(3)
    assert not interrupts
