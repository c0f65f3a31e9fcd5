"""What a training shows of its steps, on standard error: a bar in a terminal, a plain line every N steps in a log."""

import collections
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from tqdm import tqdm

from limba.workers import launchers

logger = logging.getLogger(__name__)

# The figures of a step: "loss", of a target token, and perhaps "learning rate".
Figures = Mapping[str, float]
# Unless --log_every says otherwise, lines are about this many seconds apart.
_LINE_SECONDS = 15.0
# Steps of a shared machine, and of rows of different lengths, are not alike: a quarter of a minute says little.
_WINDOW_SECONDS = 300.0
# By the name of a kind of pause, such as "evaluation": how many are due after a step.
PausesDue = Mapping[str, Callable[[int], int]]


class Progress(Protocol):
    """A context for the steps of a run. `launch/worker.sh --status` reads the step from what a log gets.

    Attributes:
      tokens_per_step: input and target positions of the global batch; they may change between two steps.
    """

    tokens_per_step: int

    def __enter__(self) -> "Progress": ...

    def __exit__(self, *_: object) -> None: ...

    def step(self, this: Callable[[], Figures], before: Callable[[], Figures] | None) -> None:
        """Counts a step, with functions that read its figures and those of the step before, which is surely done.

        The first one, which compiled, has no step before; it starts the clock.
        """

    def paused(self, kind: str | None = None) -> contextlib.AbstractContextManager[None]:
        """A context whose time does not count for rates. The time left has what others of its kind will take."""

    def message(self, text: str) -> None:
        """Shows a line."""


def show(
    total_steps: int, first_step: int, tokens_per_step: int, log_every: int | None, pauses_due: PausesDue
) -> Progress:
    """What fits standard error.

    Args:
      total_steps: the run's last step.
      first_step: the step from which it starts or resumes.
      tokens_per_step: input and target positions of the global batch.
      log_every: steps between lines; None is a bar in a terminal, and lines about 15 s apart in a log.
      pauses_due: how many of each kind come after a step, for the time left.
    """
    time_left = TimeLeft(total_steps, pauses_due)
    if log_every is None and sys.stderr.isatty() and not launchers.is_beside_another(os.environ):
        return ProgressBar(total_steps, first_step, tokens_per_step, time_left)
    return StepLines(total_steps, first_step, tokens_per_step, log_every, time_left)


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


class _Bar(tqdm):
    """tqdm's bar, whose own time left is that of a few seconds, with a text for it."""

    left = "?"

    @property
    def format_dict(self) -> dict:
        return super().format_dict | {"left": self.left}


class ProgressBar:
    """Loss, steps/s, tokens/s and the time left, in one line of a terminal."""

    def __init__(self, total_steps: int, first_step: int, tokens_per_step: int, time_left: TimeLeft):
        self._bar = _Bar(
            total=total_steps,
            initial=first_step,
            unit="step",
            mininterval=0.2,
            smoothing=0.05,
            dynamic_ncols=True,
            bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{left}, {rate_fmt}{postfix}]",
        )
        self._time_left = time_left
        self.tokens_per_step = tokens_per_step
        self._loss_due = 0.0
        self._began = 0.0
        self._tokens = 0

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def step(self, this: Callable[[], Figures], before: Callable[[], Figures] | None) -> None:
        now = time.monotonic()
        if before is None:
            self._began = now
            # The bar counts it, and its rate and time left do without it.
            self._bar.unpause()
            self._bar.initial += 1
            self._bar.n += 1
            self._time_left.step_done(self._bar.n)
            self._bar.refresh()
            return
        self._time_left.step_done(self._bar.n + 1)
        self._tokens += self.tokens_per_step
        if now >= self._loss_due:  # Reading it from the device takes some time.
            self._loss_due = now + 0.5
            tokens_per_second = self._tokens / max(now - self._began, 1e-9)
            self._bar.left = self._time_left.shown(self._bar.n + 1)
            self._bar.set_postfix_str(f"loss {before()['loss']:.3f}, {tokens_per_second:,.0f} tokens/s", refresh=False)
        self._bar.update(1)

    @contextlib.contextmanager
    def paused(self, kind: str | None = None) -> Iterator[None]:
        entered = time.monotonic()
        with self._time_left.pause(kind):
            yield
        self._bar.unpause()
        self._began += time.monotonic() - entered

    def message(self, text: str) -> None:
        tqdm.write(text, file=sys.stderr)


class StepLines:
    """`step 20/40: loss 6.665, learning rate 0.0039, 8.72 s/step, 555 tokens/s, 2:54 left`, every N steps.

    The first step, which has no rates yet, and the last have a line too. Rates are those since the line before; the
    time left is that of `TimeLeft`.
    """

    def __init__(
        self, total_steps: int, first_step: int, tokens_per_step: int, log_every: int | None, time_left: TimeLeft
    ):
        self._total, self._step, self._every, self._time_left = total_steps, first_step, log_every, time_left
        self.tokens_per_step = tokens_per_step
        self._tokens = 0  # since the last line
        self._shown = first_step
        self._since = 0.0

    def __enter__(self) -> "StepLines":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown < self._step:  # An error or a stop came between two lines.
            logger.info("step %d/%d", self._step, self._total)

    def step(self, this: Callable[[], Figures], before: Callable[[], Figures] | None) -> None:
        self._step += 1
        self._time_left.step_done(self._step)
        self._tokens += self.tokens_per_step
        if before is not None and self._step < self._total and self._step % self._period():
            return
        figures = [f"{name} {x:.3f}" if name == "loss" else f"{name} {x:.3g}" for name, x in this().items()]
        now = time.monotonic()
        if before is not None:
            since = max(now - self._since, 1e-9)
            seconds = since / (self._step - self._shown)
            figures += [
                f"{1 / seconds:.3g} steps/s" if seconds < 1 else f"{seconds:.3g} s/step",
                f"{self._tokens / since:,.0f} tokens/s",
                f"{self._time_left.shown(self._step)} left",
            ]
        logger.info("step %d/%d: %s", self._step, self._total, ", ".join(figures))
        self._shown, self._since, self._tokens = self._step, now, 0

    def _period(self) -> int:
        """Steps between lines: 1, 2, 5, 10, 20, … as take 15 s, by the time of the steps since the last line."""
        if self._every is not None:
            return self._every
        wanted = _LINE_SECONDS * (self._step - self._shown) / max(time.monotonic() - self._since, 1e-9)
        period = 1
        while period < wanted:
            period = period * 5 // 2 if str(period)[0] == "2" else period * 2
        return period

    @contextlib.contextmanager
    def paused(self, kind: str | None = None) -> Iterator[None]:
        entered = time.monotonic()
        with self._time_left.pause(kind):
            yield
        self._since += time.monotonic() - entered

    def message(self, text: str) -> None:
        logger.info("%s", text)
