"""Goodput: where the wall-clock time of a run went, over all of its starts.

A run that is restarted loses more than its training loop can see: the time until the next process came, and the steps
that are made again. Each start writes lines into `MODEL_DIR/goodput.jsonl`: the step, the time of day, and the seconds
spent so far by kind. The next start reads them. What a killed process did after its last line counts as "restart".
"""

import contextlib
import dataclasses
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

FILE_NAME = "goodput.jsonl"

# What time is spent on. "step" alone is good.
KINDS = {
    "start": "opening data, initializing or restoring",
    "compile": "compiling, with the first step",
    "input": "waiting for batches, the device idle",
    "step": "training steps that count",
    "checkpoint": "saving",
    "evaluation": "evaluating",
    "restart": "between a stop and the next start",
    "lost": "steps that had to be made again",
}

# Seconds between lines, where nothing else makes one: what a killed process cannot tell, against the size of the file.
_PERIOD = 60.0


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One start of a run, as it last said.

    Attributes:
      began, ended: time of day, seconds since the epoch.
      seconds: by kind.
      step_seconds: seconds of steps so far, by the step at which a line was written.
    """

    began: float
    ended: float
    seconds: Mapping[str, float]
    step_seconds: Mapping[int, float]

    def step_seconds_after(self, step: int) -> float:
        """Seconds of steps that were made after `step`, as far as lines say."""
        kept = [seconds for at, seconds in self.step_seconds.items() if at <= step]
        return self.seconds.get("step", 0.0) - max(kept, default=0.0)


def read_attempts(model_dir: Path) -> list[Attempt]:
    """The starts of a run, in order; a half-written last line is left out."""
    path = model_dir / FILE_NAME
    by_start: dict[float, list[dict]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        with contextlib.suppress(json.JSONDecodeError):
            read = json.loads(line)
            by_start.setdefault(read["began"], []).append(read)
    return [
        Attempt(
            began,
            max(line["time"] for line in lines),
            lines[-1]["seconds"],
            {line["step"]: line["seconds"].get("step", 0.0) for line in lines},
        )
        for began, lines in sorted(by_start.items())
    ]


def summarize(attempts: list[Attempt], first_steps: list[int]) -> dict[str, float]:
    """Seconds by kind of several starts: pauses between them are "restart", and steps that were made again "lost".

    Args:
      attempts: in order.
      first_steps: the step at which each attempt began.
    """
    total = dict.fromkeys(KINDS, 0.0)
    for attempt in attempts:
        for kind, seconds in attempt.seconds.items():
            total[kind] += seconds
    for i, (before, after) in enumerate(itertools.pairwise(attempts)):
        total["restart"] += max(after.began - before.ended, 0.0)
        lost = max(before.step_seconds_after(first_steps[i + 1]), 0.0)
        total["lost"] += lost
        total["step"] -= lost
    return total


class Goodput:
    """Keeps the time of one start, and knows the earlier ones.

    Time that is not spent on anything else is spent on steps, from `begin_steps` on; before it, on starting.

    Args:
      model_dir: of the run, on this machine.
      first_step: the step that this start begins with.
      began: `time.monotonic()` when it began.
      resumed: whether the run had a checkpoint; a new run forgets what the file says.
      writes: whether lines are written, which one process does.

    Attributes:
      kind: what time is being spent on.
      step: the last one that is over.
    """

    def __init__(self, model_dir: Path, first_step: int, began: float, resumed: bool, writes: bool = True):
        self._path = model_dir / FILE_NAME
        self._writes = writes
        if writes and not resumed:
            self._path.unlink(missing_ok=True)
        self._earlier = read_attempts(model_dir) if resumed else []
        self._first_steps = [min(a.step_seconds, default=0) for a in self._earlier] + [first_step]
        self.kind = "start"
        self._since = began
        self._began = time.time() - (time.monotonic() - began)
        self._seconds: dict[str, float] = {}
        self._step_seconds: dict[int, float] = {}
        self._written = time.monotonic()
        self.step = first_step

    def _account(self, kind: str) -> None:
        """Ends the present kind and begins another."""
        now = time.monotonic()
        self._seconds[self.kind] = self._seconds.get(self.kind, 0.0) + now - self._since
        self.kind, self._since = kind, now

    def begin_steps(self) -> None:
        """The loop begins."""
        self._account("step")
        self.write()

    @contextlib.contextmanager
    def spending(self, kind: str) -> Iterator[None]:
        """The time in here is of this kind."""
        before = self.kind
        self._account(kind)
        try:
            yield
        finally:
            self._account(before)

    def move(self, seconds: float, source: str, target: str) -> None:
        """Books seconds of one kind as another's."""
        self._seconds[source] = self._seconds.get(source, 0.0) - seconds
        self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def step_done(self, step: int) -> None:
        """A step is over; writes a line now and then."""
        self.step = step
        if time.monotonic() - self._written >= _PERIOD:
            self.write()

    def write(self) -> None:
        """Writes a line; at a checkpoint it tells what a restart from there would not lose."""
        self._account(self.kind)
        self._written = time.monotonic()
        self._step_seconds[self.step] = self._seconds.get("step", 0.0)
        if self._writes:
            line = {"began": self._began, "time": time.time(), "step": self.step, "seconds": self._seconds}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def seconds(self) -> dict[str, float]:
        """Seconds by kind so far, of all starts."""
        self._account(self.kind)
        this = Attempt(self._began, time.time(), dict(self._seconds), dict(self._step_seconds))
        return summarize([*self._earlier, this], self._first_steps)

    def scalars(self) -> dict[str, float]:
        """Tags of the metrics: `goodput/fraction`, and `goodput/<kind>_seconds`."""
        seconds = self.seconds()
        fraction = seconds["step"] / max(sum(seconds.values()), 1e-9)
        return {"goodput/fraction": fraction} | {f"goodput/{kind}_seconds": s for kind, s in seconds.items()}

    def table(self) -> str:
        """What is printed at the end of a run, which the next start counts from."""
        self.write()
        seconds = self.seconds()
        total = max(sum(seconds.values()), 1e-9)
        starts = f"{len(self._first_steps)} start{'s' if len(self._first_steps) > 1 else ''}"
        lines = [f"goodput {seconds['step'] / total:.1%} of {total:,.0f} s, {starts}:"]
        lines += [
            f"  {kind:<11}{spent:>12,.1f} s {spent / total:>6.1%}  {KINDS[kind]}"
            for kind, spent in seconds.items()
            if spent >= 0.05
        ]
        return "\n".join(lines)
