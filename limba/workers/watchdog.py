"""The watchdog reports a run that hangs, with the stack of every thread, and ends it so that it does not block a pod.

Its thread compares the time since the last step with the time that earlier steps took. Collectives wait without limit
and without a message, so the worker that hangs is often another one: a report also says what the others are doing.
"""

import collections
import contextlib
import dataclasses
import logging
import multiprocessing
import os
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0

logger = logging.getLogger(__name__)

# sysexits.h EX_PROTOCOL: the other side does not answer. A supervisor restarts the run.
HUNG_EXIT_CODE = 76

# The usual duration of a step is the median of this many steps.
_HISTORY = 100
# The share of a core that a process uses if it is making a batch, and not only waiting for one.
_BUSY = 0.2
# Seconds that a run has to stop after the request, before the process is ended.
_GRACE = 60.0


@dataclasses.dataclass(frozen=True)
class WatchdogConfig:
    """When a slow step is reported, and when it ends the run.

    Attributes:
      report_factor: a step is reported after this many times its usual duration,
      report_seconds: and after this many seconds at least.
      end_seconds: the run ends after this many seconds without a step; None never ends it.
    """

    report_factor: float = 10.0
    report_seconds: float = 120.0
    end_seconds: float | None = 1800.0

    def __post_init__(self) -> None:
        for name in ("report_factor", "report_seconds", "end_seconds"):
            number_ranges.check(f"WatchdogConfig.{name}", getattr(self, name), ABOVE_0._replace(or_none=True))

    def report_after(self, usual: float) -> float:
        """Seconds after which a step is reported, if steps usually take `usual` seconds."""
        return max(self.report_factor * usual, self.report_seconds)


class Watchdog:
    """A context that watches the steps of a loop from a thread of its own.

    Args:
      config: None watches nothing.
      request_stop: asks the loop to save and stop after the current step; takes the reason.
      rescue: called if the loop does not stop, before the process is ended; it may save a checkpoint.
      others: describes what the other workers are doing; "" if there are none.
      end: ends the process with an exit code, without waiting for anything.
      grace_seconds: between the request to stop and `end`.
    """

    def __init__(
        self,
        config: WatchdogConfig | None,
        request_stop: Callable[[str], None],
        rescue: Callable[[], None] = lambda: None,
        others: Callable[[], str] = lambda: "",
        end: Callable[[int], None] = os._exit,
        grace_seconds: float = _GRACE,
    ):
        self._config = config
        self._request_stop = request_stop
        self._rescue = rescue
        self._others = others
        self._end = end
        self._grace = grace_seconds
        self._first_seconds = 0.0  # of the step that compiled: longer than others
        self._durations: collections.deque[float] = collections.deque(maxlen=_HISTORY)
        self._last: float | None = None
        self._first_began: float | None = None
        self._step = 0
        self._paused = 0
        self._makes_first = False
        # What the last look has found: the time, what had been computed until then, when something was, and the step
        # with the longest wait reported of it.
        self._looked = self._busy = time.monotonic()
        self._used = _cpu_seconds()
        self._seen_step, self._reported, self._asked = -1, 0.0, False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> "Watchdog":
        if self._config is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5.0)

    def beat(self, step: int) -> None:
        """Counts a finished step. The first one, which compiled, starts the clock."""
        now = time.monotonic()
        if self._last is not None:
            self._durations.append(now - self._last)
        elif self._first_began is not None:
            self._first_seconds = now - self._first_began
        self._last, self._step = now, step

    @contextlib.contextmanager
    def first_wait(self) -> Iterator[None]:
        """A context for the wait for the first batch; what follows compiles, and is not watched.

        Nobody knows how long a batch takes on a busy machine: only the time in which this process is idle counts.
        """
        self._first_began = self._last = time.monotonic()
        self._makes_first = True
        try:
            yield
        finally:
            self._makes_first, self._last = False, None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A context for evaluations and checkpoints, whose time does not count."""
        entered = time.monotonic()
        self._paused += 1
        try:
            yield
        finally:
            if self._last is not None:
                self._last += time.monotonic() - entered
            self._paused -= 1

    def _watch(self) -> None:
        assert self._config is not None
        tick = min(1.0, self._config.report_seconds / 4)
        while not (self._closed.wait(tick) or self._has_ended_the_run()):
            pass

    def _has_ended_the_run(self) -> bool:
        """One look: reports what is due, asks for a stop, and at last ends the run."""
        assert self._config is not None
        if self._step != self._seen_step:
            self._reported, self._asked, self._seen_step = 0.0, False, self._step
        looked_before, used_before, last = self._looked, self._used, self._last
        self._looked, self._used = time.monotonic(), _cpu_seconds()
        if self._makes_first and self._used - used_before > _BUSY * (self._looked - looked_before):
            self._busy = self._looked
        if last is None or self._paused:
            return False
        waited = self._looked - max(last, self._busy)
        usual = statistics.median(self._durations) if self._durations else 0.0
        at_least = self._config.report_after(usual) if self._durations else self._first_seconds
        # Again each time the wait has doubled: if the stacks differ, something moves.
        if waited > max(at_least, self._config.report_seconds, 2 * self._reported):
            self._reported = waited
            self._report(waited, usual)
        if self._config.end_seconds is None or waited <= self._config.end_seconds:
            return False
        if not self._asked:
            self._asked = True
            logger.error("The run is asked to stop: no step has finished for %.0f s.", waited)
            self._request_stop(f"no step for {waited:.0f} s")
        elif waited > self._config.end_seconds + self._grace:
            self._finish(waited)
            return True
        return False

    def _report(self, waited: float, usual: float) -> None:
        others = self._others()
        logger.error(
            "Step %d has taken %.0f s so far; a step usually takes %.3g s.%s Stacks of all threads:\n%s",
            self._step + 1,
            waited,
            usual,
            f" {others}" if others else "",
            stacks(),
        )

    def _finish(self, waited: float) -> None:
        others = self._others()
        logger.error(
            "Step %d did not finish in %.0f s: the run ends with exit code %d.%s",
            self._step + 1,
            waited,
            HUNG_EXIT_CODE,
            f" {others}" if others else "",
        )
        try:
            self._rescue()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            self._end(HUNG_EXIT_CODE)


def _cpu_seconds() -> float:
    """Of all threads, and of the processes that read for this one. One that ends takes its seconds with it."""
    return time.process_time() + sum(_cpu_seconds_of(child.pid or 0) for child in multiprocessing.active_children())


def _cpu_seconds_of(process: int) -> float:
    try:
        return time.clock_gettime(~process << 3 | 2)  # The number of its clock, as clock_getcpuclockid has it.
    except OSError:  # It has ended, or this is not Linux.
        return 0.0


def stacks() -> str:
    """The stacks of all threads of this process, as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"--- thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
