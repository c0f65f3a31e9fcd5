"""Training metrics summed up over a period, with rates, under T5X's tags."""

import contextlib
import time
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp

from limba import metrics as metrics_lib
from limba.schedules import LearningRateFn
from limba.writers import MetricWriter


class TrainStatistics:
    """Collects the metrics of each step and writes their sums and rates.

    Args:
      writers: where the scalars go.
      learning_rate_fn: the Trainer's.
      batch_size: sequences of a step.
      tokens_per_step: input and target positions of a step.
    """

    def __init__(
        self, writers: Sequence[MetricWriter], learning_rate_fn: LearningRateFn, batch_size: int, tokens_per_step: int
    ):
        self._writers = writers
        self._learning_rate_fn = learning_rate_fn
        self._batch_size = batch_size
        self._tokens_per_step = tokens_per_step
        self._add = jax.jit(metrics_lib.add)
        self._begin()

    def _begin(self) -> None:
        self._sum: metrics_lib.Metrics | None = None
        self._timed_steps = 0
        self._began = time.monotonic()
        self._compilation_seconds: float | None = None

    def add(self, metrics: metrics_lib.Metrics) -> None:
        """One more step."""
        self._sum = metrics if self._sum is None else self._add(self._sum, metrics)
        self._timed_steps += 1

    def add_first(self, metrics: metrics_lib.Metrics, compilation_seconds: float) -> None:
        """The step that compiled: its metrics count, its time does not."""
        self._sum = metrics
        self._compilation_seconds = compilation_seconds
        self._began = time.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent in here does not count as training."""
        entered = time.monotonic()
        yield
        self._began += time.monotonic() - entered

    def write(self, step: int) -> None:
        """Writes what was collected since the last time, if anything, and begins anew."""
        if self._sum is None:
            return
        scalars = metrics_lib.compute(self._sum)
        scalars["learning_rate/current"] = float(self._learning_rate_fn(jnp.int32(step - 1)))
        if self._compilation_seconds is not None:
            scalars["timing/compilation_seconds"] = self._compilation_seconds
        if self._timed_steps:
            seconds = max(time.monotonic() - self._began, 1e-9)
            steps_per_second = self._timed_steps / seconds
            scalars |= {
                "timing/seconds": seconds,
                "timing/steps_per_second": steps_per_second,
                "timing/seqs_per_second": steps_per_second * self._batch_size,
                "timing/seqs_per_second_per_core": steps_per_second * self._batch_size / jax.device_count(),
                "timing/tokens_per_second": steps_per_second * self._tokens_per_step,
            }
        for writer in self._writers:
            writer.write_scalars(step, "train", scalars)
        self._begin()
