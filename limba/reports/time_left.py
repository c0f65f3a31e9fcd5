"""The time that a run still takes: its steps, and the evaluations and checkpoints that are due until its end."""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from tqdm import tqdm

# Steps of a shared machine, and of rows of different lengths, are not alike: a quarter of a minute says little.
_WINDOW_SECONDS = 300.0

# By the name of a kind of pause, such as "evaluation": how many are due after a step.
PausesDue = Mapping[str, Callable[[int], int]]


class TimeLeft:
    """Estimates the seconds to the last step.

    A step takes what it took on average in the last five minutes of steps. A pause takes what those of its kind took in
    this start of the run; before the first of its kind it counts as nothing.

    Args:
      total_steps: the last step.
      due: the kinds of pauses that come again.
    """

    def __init__(self, total_steps: int, due: PausesDue):
        self._total, self._due = total_steps, due
        self._seen: collections.deque[tuple[float, int]] = collections.deque()  # seconds without pauses, step
        self._paused = 0.0
        self._pauses: dict[str, list[float]] = {}

    def step_done(self, step: int) -> None:
        """Notes that a step is done; the first one, which compiled, starts the clock."""
        now = time.monotonic() - self._paused
        if not self._seen or now - self._seen[-1][0] >= 1.0:  # often enough for minutes
            self._seen.append((now, step))
        while len(self._seen) > 2 and self._seen[1][0] <= now - _WINDOW_SECONDS:
            self._seen.popleft()

    @contextlib.contextmanager
    def pause(self, kind: str | None) -> Iterator[None]:
        """A context whose time is no step's. None is a kind that does not come again."""
        entered = time.monotonic()
        yield
        seconds = time.monotonic() - entered
        self._paused += seconds
        if kind is not None:
            self._pauses.setdefault(kind, []).append(seconds)

    def seconds(self, step: int) -> float | None:
        """From the end of `step` to that of the last one, pauses included; None while only one step is done."""
        if not self._seen or step <= self._seen[0][1]:
            return None
        since, first = self._seen[0]
        steps = (time.monotonic() - self._paused - since) / (step - first) * (self._total - step)
        return steps + sum(sum(x) / len(x) * self._due[kind](step) for kind, x in self._pauses.items())

    def shown(self, step: int) -> str:
        """As 05:36 or 1:05:36; ? if it is not known."""
        seconds = self.seconds(step)
        return "?" if seconds is None else tqdm.format_interval(seconds)
