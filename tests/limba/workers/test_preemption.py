"""Signals are heard, also while the main thread is in another library."""

import ctypes
import os
import signal
import threading
import time

import pytest

from limba.workers.preemption import StopBeforeSteps, StopRequest


def _in_c_for(seconds: float) -> None:
    """Waits in C, deaf to signals, as a compiler does: another thread gets them, and Python's handlers must wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        ctypes.CDLL(None).usleep(int(seconds * 1e6))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _send(signum: int, after: float) -> None:
    threading.Timer(after, os.kill, (os.getpid(), signum)).start()


def test_a_signal_is_heard_while_the_main_thread_is_elsewhere():
    heard = []
    stop = StopRequest(
        interrupt=lambda: heard.append(("interrupt", time.monotonic())),
        rescue=lambda: heard.append(("rescue", time.monotonic())),
        grace_seconds=0.3,
    )
    with stop:
        _send(signal.SIGTERM, 0.1)
        _in_c_for(1.0)
        back = time.monotonic()
        assert stop.is_due(0)
    assert [kind for kind, _ in heard] == ["interrupt", "rescue"]
    assert all(at < back for _, at in heard) and heard[1][1] - heard[0][1] >= 0.3
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_before_the_steps_a_signal_ends_the_process(caplog):
    left = []
    with pytest.raises(SystemExit) as stop, StopBeforeSteps(lambda: left.append(1), grace_seconds=0.2):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    assert stop.value.code == 75 and not left and "Stopped on request" in caplog.text
    with pytest.raises(SystemExit), StopBeforeSteps(lambda: left.append(1), grace_seconds=0.2):
        _send(signal.SIGTERM, 0.1)
        _in_c_for(1.0)
        time.sleep(30)
    assert left, "it is in a library"
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
        for _ in range(100):  # the thread may hear it before this one does
            if interrupts:
                break
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
