"""Goodput: what the wall-clock time of a run was spent on, over all of its starts.

A restart costs time that the training loop cannot measure: the time until the next process starts, and the steps that
are repeated. Each start writes lines into `MODEL_DIR/goodput.jsonl`: the step, the time of day, and the seconds spent
so far by kind. The next start reads them. Time after the last line of a killed process counts as "restart".
"""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from limba.files import written_files
from limba.reports import json_lines

FILE_NAME = "goodput.jsonl"

# The kinds of time. Goodput is the share of "step".
KINDS = {
    "start": "opening data, initializing or restoring",
    "compile": "compiling, with the first step",
    "input": "waiting for batches, the device idle",
    "step": "training steps that count",
    "checkpoint": "saving",
    "evaluation": "evaluating",
    "restart": "between a stop and the next start",
    "lost": "steps that had to be repeated",
}

# Seconds between lines: a killed process loses at most this time, and the file stays small.
_PERIOD = 60.0


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One start of a run, as its lines record it.

    Attributes:
      began, ended: seconds since the epoch.
      seconds: by kind.
      step_seconds: seconds of steps so far, by the step at which a line was written.
    """

    began: float
    ended: float
    seconds: Mapping[str, float]
    step_seconds: Mapping[int, float]

    def step_seconds_after(self, step: int) -> float:
        """Seconds of the recorded steps after `step`."""
        kept = [seconds for at, seconds in self.step_seconds.items() if at <= step]
        return self.seconds.get("step", 0.0) - max(kept, default=0.0)


def read_attempts(model_dir: Path) -> list[Attempt]:
    """The starts of a run, in order, without damaged lines."""
    return attempts_of(json_lines.read(model_dir / FILE_NAME, is_record))


def is_record(line: json_lines.Record) -> bool:
    """Whether a line of the file is what `Goodput` writes."""
    seconds = line.get("seconds")
    return (
        isinstance(line.get("step"), int)
        and all(json_lines.is_number(line.get(name)) for name in ("step", "began", "time"))
        and isinstance(seconds, dict)
        and all(kind in KINDS and json_lines.is_number(x) for kind, x in seconds.items())
    )


def attempts_of(records: list[json_lines.Record]) -> list[Attempt]:
    """The starts of a run, in order, of the lines of its file."""
    by_start: dict[float, list[json_lines.Record]] = {}
    for record in records:
        by_start.setdefault(record["began"], []).append(record)
    attempts = []
    for began, lines in by_start.items():  # As they were written: the clock may have been set back between two starts.
        step_seconds = {line["step"]: line["seconds"].get("step", 0.0) for line in lines}
        attempts.append(Attempt(began, max(line["time"] for line in lines), lines[-1]["seconds"], step_seconds))
    return attempts


def summarize(attempts: list[Attempt], first_steps: list[int]) -> dict[str, float]:
    """Seconds by kind of several starts in order: time between them is "restart", and repeated steps are "lost"."""
    total = dict.fromkeys(KINDS, 0.0)
    for attempt in attempts:
        for kind, seconds in attempt.seconds.items():
            total[kind] += seconds
    for i, (before, after) in enumerate(itertools.pairwise(attempts)):
        total["restart"] += max(after.began - before.ended, 0.0)
        lost = max(before.step_seconds_after(min(first_steps[i + 1 :])), 0.0)  # a later one may go back further
        total["lost"] += lost
        total["step"] -= lost
    return total


class Goodput:
    """Records the time of one start, and adds that of the earlier ones.

    Time outside `spending` counts as "start" until `begin_steps`, and as "step" after it.

    Args:
      model_dir: of the run, on this machine.
      first_step: the first step of this start.
      began: `time.monotonic()` at this start.
      writes: whether this process writes the lines; one of them does.

    Attributes:
      kind: the current kind of time.
      step: the last finished step.
    """

    def __init__(self, model_dir: Path, first_step: int, began: float, writes: bool = True):
        self._path = model_dir / FILE_NAME
        self._writes = writes
        read = json_lines.read_and_repair if writes else json_lines.read
        self._earlier = attempts_of(read(self._path, is_record))
        self._first_steps = [min(a.step_seconds, default=0) for a in self._earlier] + [first_step]
        self.kind = "start"
        self._since = began
        self._began = time.time() - (time.monotonic() - began)
        self._seconds: dict[str, float] = {}
        self._step_seconds: dict[int, float] = {}
        self._written = time.monotonic()
        self.step = first_step

    def _account(self, kind: str) -> None:
        """Ends the current kind of time and begins another."""
        now = time.monotonic()
        self._seconds[self.kind] = self._seconds.get(self.kind, 0.0) + now - self._since
        self.kind, self._since = kind, now

    def begin_at(self, step: int) -> None:
        """Says at which step this start really begins, where a checkpoint could not be read."""
        self.step = self._first_steps[-1] = step

    def begin_steps(self) -> None:
        """Marks the start of the training loop."""
        self._account("step")
        self.write()

    @contextlib.contextmanager
    def spending(self, kind: str) -> Iterator[None]:
        """A context whose time counts as this kind."""
        before = self.kind
        self._account(kind)
        try:
            yield
        finally:
            self._account(before)

    def move(self, seconds: float, source: str, target: str) -> None:
        """Counts seconds of one kind as another kind."""
        self._seconds[source] = self._seconds.get(source, 0.0) - seconds
        self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def step_done(self, step: int) -> None:
        """Counts a finished step; writes a line if the last one is old."""
        self.step = step
        if time.monotonic() - self._written >= _PERIOD:
            self.write()

    def write(self) -> None:
        """Writes a line. After a checkpoint it records the step time that a restart does not lose."""
        self._account(self.kind)
        self._written = time.monotonic()
        self._step_seconds[self.step] = self._seconds.get("step", 0.0)
        if self._writes:
            line = {"began": self._began, "time": time.time(), "step": self.step, "seconds": self._seconds}
            with written_files.append(self._path, encoding="utf-8") as file:
                file.write(json_lines.to_line(line))

    def seconds(self) -> dict[str, float]:
        """Seconds by kind so far, of all starts."""
        self._account(self.kind)
        this = Attempt(self._began, time.time(), dict(self._seconds), dict(self._step_seconds))
        return summarize([*self._earlier, this], self._first_steps)

    def scalars(self) -> dict[str, float]:
        """The metrics `goodput/fraction` and `goodput/<kind>_seconds`."""
        seconds = self.seconds()
        fraction = seconds["step"] / max(sum(seconds.values()), 1e-9)
        return {"goodput/fraction": fraction} | {f"goodput/{kind}_seconds": s for kind, s in seconds.items()}

    def table(self) -> str:
        """The table that is printed at the end of a run; also writes a last line."""
        self.write()
        seconds = self.seconds()
        total = max(sum(seconds.values()), 1e-9)
        starts = f"{len(self._first_steps)} start{'s' if len(self._first_steps) > 1 else ''}"
        lines = [f"goodput {seconds['step'] / total:.1%} of {total:,.0f} s, {starts}:"]
        for kind, spent in seconds.items():
            if spent >= 0.05:
                lines.append(f"  {kind:<11}{spent:>12,.1f} s {spent / total:>6.1%}  {KINDS[kind]}")
        return "\n".join(lines)
