"""Fits of bigrams, each in a process of its own, at the same time.

A fit takes many products of matrices that are too small for all cores, and the threads of NumPy's library wait for each
other at full load: two fits of 4,096 pieces took 22 cpu-seconds with them, and 6 without. The library reads the number
of its threads when it is loaded. And this process has a network to compile meanwhile.
"""

import contextlib
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from tqdm import tqdm

from limba.files import json_text, python_path
from limba.training.from_counts import factored_bigram
from limba.training.from_counts.factored_bigram import BigramCounts, FactoredBigram

logger = logging.getLogger(__name__)

# A fit of fewer products takes less time than the start of a process.
_FEWEST_PRODUCTS = 1e9
# Seconds between two lines of a log.
_LINE_SECONDS = 15.0
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "MKL", "OMP", "VECLIB_MAXIMUM")}
_COUNTS, _ANSWER = "counts.npz", "bigram.npz"


@dataclasses.dataclass(frozen=True)
class Fit:
    """What `factored_bigram.fit` is asked for; its arguments but for `threads` and `advance`."""

    counts: BigramCounts
    rank: int
    longest: float
    discount: float
    steps: int
    seed: int

    @property
    def settings(self) -> dict[str, Any]:
        """All but the counts."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "counts"}

    @property
    def is_small(self) -> bool:
        size = len(self.counts.unigrams)
        return factored_bigram.products(size, self.rank) * (self.steps + 1) < _FEWEST_PRODUCTS

    def make(self, **options: Any) -> FactoredBigram:
        return factored_bigram.fit(self.counts, **self.settings, **options)


def make(fits: Sequence[Fit]) -> Iterator[tuple[int, FactoredBigram]]:
    """The number of each fit, with its bigram, in the order in which they are done.

    Raises:
      RuntimeError: if a process ends before its fit, as for want of memory.
    """
    large = [number for number, fit in enumerate(fits) if not fit.is_small]
    for number, fit in enumerate(fits):
        if number not in large:
            yield number, fit.make()
    if not large:
        return
    threads = max(_num_cores() // len(large), 1)
    with contextlib.ExitStack() as opened:
        processes = {number: opened.enter_context(_Process.began(fits[number], threads)) for number in large}
        progress = opened.enter_context(_Progress(sum(fits[number].steps for number in large)))
        while processes:
            for number, process in list(processes.items()):
                progress.add(process.new_steps())
                if (bigram := process.answer()) is not None:
                    del processes[number]
                    yield number, bigram
            time.sleep(0.02)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclasses.dataclass
class _Process:
    """A process that fits. It writes a byte after each step, and so ends with this one, whatever ended it."""

    folder: Path
    popen: subprocess.Popen[bytes]

    @classmethod
    @contextlib.contextmanager
    def began(cls, fit: Fit, threads: int) -> Iterator[Self]:
        with tempfile.TemporaryDirectory(prefix="limba-fit-") as folder:
            np.savez(Path(folder, _COUNTS), **fit.counts.arrays())  # type: ignore[arg-type]
            settings = json_text.dumps({**fit.settings, "threads": threads})
            popen = subprocess.Popen(
                [sys.executable, "-m", __name__, folder, settings],
                env=python_path.with_path(_ONE_THREAD),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this process, which ends the others.
            )
            assert popen.stdout is not None
            os.set_blocking(popen.stdout.fileno(), False)
            try:
                yield cls(Path(folder), popen)
            finally:
                popen.kill()
                popen.wait()
                popen.stdout.close()

    def new_steps(self) -> int:
        assert self.popen.stdout is not None
        return len(self.popen.stdout.read() or b"")

    def answer(self) -> FactoredBigram | None:
        if (code := self.popen.poll()) is None:
            return None
        if code:
            reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise RuntimeError(
                f"A fit of a start from counts ended early ({reason}). SIGKILL is often a want of memory: a smaller "
                "StartFromCounts.rank needs less."
            )
        with np.load(self.folder / _ANSWER) as found:
            return FactoredBigram(**found)


class _Progress:
    """A bar in a terminal, and in a log a line now and then."""

    def __init__(self, steps: int):
        self._bar = tqdm(total=steps, desc="fitting bigrams", unit="step", disable=None)
        self._done, self._steps, self._said = 0, steps, time.monotonic()

    def add(self, steps: int) -> None:
        self._done += steps
        self._bar.update(steps)
        if self._bar.disable and time.monotonic() - self._said > _LINE_SECONDS:
            self._said = time.monotonic()
            logger.info("fitting bigrams: %d of %d steps", self._done, self._steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


def main(folder: str, settings: str) -> None:
    """Runs in the new process."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with np.load(Path(folder, _COUNTS)) as found:
        counts = BigramCounts(**found)
    bigram = factored_bigram.fit(counts, **json.loads(settings), advance=lambda: os.write(1, b"."))
    np.savez(Path(folder, _ANSWER), **bigram.arrays())  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
