"""Ctrl-C ends a program also where Python drops exceptions."""

import gc
import signal
import time
import weakref

import pytest

from limba.workers import preemption


@pytest.fixture
def caught():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    preemption.catch_interrupts()
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_keyboard_interrupt(caught):
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_in_a_callback_of_the_garbage_collector_comes_a_moment_later(caught):
    begun = []

    def _xla_gc_callback(phase, _):
        if phase == "start" and not begun:
            begun.append(time.monotonic())
            signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(_xla_gc_callback)
    try:
        with pytest.raises(KeyboardInterrupt):
            gc.collect(0)  # all generations take seconds in a process that has run many tests
            time.sleep(10)
    finally:
        gc.callbacks.remove(_xla_gc_callback)
    assert time.monotonic() - begun[0] > 0.05


def test_ctrl_c_in_a_callback_of_a_weak_dictionary_comes_a_moment_later(caught):
    scope = {"signal": signal, "seen": []}
    text = "def remove():\n    signal.raise_signal(signal.SIGINT)\n    seen.append(1)\n"
    exec(compile(text, weakref.__file__, "exec"), scope)
    with pytest.raises(KeyboardInterrupt):
        scope["remove"]()
        time.sleep(10)
    assert scope["seen"] == [1]


def test_a_handler_of_another_stays():
    def handler(*_):
        pass

    before = signal.signal(signal.SIGINT, handler)
    try:
        preemption.catch_interrupts()
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
