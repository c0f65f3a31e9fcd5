"""Says in the log what a process waits for, once a wait gets long: `Waiting for https://…/part-0001.gz (5 s).`"""

import logging
import threading
import time

logger = logging.getLogger(__name__)

# Seconds after which a wait is named; again each time it has doubled.
_FIRST_SECONDS = 4.0
_TICK_SECONDS = 0.5

_waits: dict[int, tuple[float, str, float]] = {}
_watching = threading.Lock()


class named:
    """A context that waits, in any thread.

    Args:
      what: the file, address or batch, as it stands in the log.
      usual: seconds that are no news: before them the wait is named only beside others.
    """

    def __init__(self, what: str, usual: float = 0.0):
        self._what, self._usual = what, usual

    def __enter__(self) -> None:
        _waits[id(self)] = time.monotonic(), self._what, self._usual
        if _watching.acquire(blocking=False):  # the first wait of the process; never released
            threading.Thread(target=_watch, name="limba-awaited", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        _waits.pop(id(self), None)


def _watch() -> None:
    said = 0.0  # the longest wait named so far, in seconds
    never = threading.Event()
    while not never.wait(_TICK_SECONDS):
        said = _name_waits(said, time.monotonic())


def _name_waits(said: float, now: float) -> float:
    """One look, which gives the next one's `said`."""
    # A copy in one operation: other threads add and remove.
    waits = [(now - since, what, usual) for since, what, usual in list(_waits.values())]
    longest = max((seconds for seconds, _, usual in waits if seconds >= usual), default=0.0)
    if longest < _FIRST_SECONDS:
        return 0.0
    if longest < 2 * said:
        return said
    long = [(seconds, what) for seconds, what, _ in sorted(waits, reverse=True) if seconds > _FIRST_SECONDS / 4]
    logger.info("Waiting for %s.", ", for ".join(f"{what} ({seconds:.0f} s)" for seconds, what in long))
    return longest
