"""Work that would not end becomes an error; what was set for the signal before is set again."""

import re
import signal
import threading

import pytest

from limba.addons.peft import bounded_time


def test_an_expression_that_does_not_end(monkeypatch):
    before = signal.getsignal(signal.SIGALRM)
    monkeypatch.setattr(bounded_time, "SECONDS", 0.2)
    with pytest.raises(ValueError, match=r"^It takes more than 0\.2 seconds\.$"), bounded_time.within("It"):
        re.fullmatch("((a+)+)+b", "a" * 60)
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_other_errors_and_threads_pass():
    with pytest.raises(KeyError), bounded_time.within("It"):
        raise KeyError("x")
    found = []

    def work():
        with bounded_time.within("It"):
            found.append(re.fullmatch("a+", "aa"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] is not None
