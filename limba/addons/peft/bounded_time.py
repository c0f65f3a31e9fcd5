"""Work on what strangers wrote, such as a regular expression, that ends after some seconds."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

SECONDS = 10.0


class _TookTooLongError(Exception):
    """Raised in the middle of the work."""


@contextlib.contextmanager
def within(what: str) -> Iterator[None]:
    """Ends the work in the block after `SECONDS`, in the main thread. Python's `re` looks for signals as it searches.

    Raises:
      ValueError: that begins with `what`, if the block takes longer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*args: Any) -> None:
        del args
        raise _TookTooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    except _TookTooLongError:
        raise ValueError(f"{what} takes more than {SECONDS:g} seconds.") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
