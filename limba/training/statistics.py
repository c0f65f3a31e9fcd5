"""Sums and rates of training metrics over a period, with T5X's tags."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax

from limba.models import metrics as metrics_lib
from limba.reports.writers import MetricWriter


def rates(seconds: float, steps: int, sequences: int, target_tokens: int) -> dict[str, float]:
    """T5X's `timing/` tags. Sequences are rows of the batch; target tokens include padding."""
    seconds = max(seconds, 1e-9)
    return {
        "timing/seconds": seconds,
        "timing/seqs": float(sequences),
        "timing/steps_per_second": steps / seconds,
        "timing/seqs_per_second": sequences / seconds,
        "timing/seqs_per_second_per_core": sequences / seconds / jax.device_count(),
        "timing/target_tokens_per_second": target_tokens / seconds,
        "timing/target_tokens_per_second_per_core": target_tokens / seconds / jax.device_count(),
    }


class TrainStatistics:
    """Collects the metrics of each step and writes their sums and rates.

    Args:
      batch_size, tokens_per_step: rows, and input and target positions, of a step.
      goodput: returns the run's time by kind, as scalars.
      task_groups: returns the tasks whose losses are averaged, by the name of the group; see `data.TaskBatches`.
      epochs: returns the number of passes over each task's documents.
    """

    def __init__(
        self,
        writers: Sequence[MetricWriter],
        batch_size: int,
        tokens_per_step: int,
        goodput: Callable[[], Mapping[str, float]] = dict,
        task_groups: Callable[[], Mapping[str, Sequence[int]]] = dict,
        epochs: Callable[[], Mapping[str, float]] = dict,
    ):
        self._writers, self._batch_size, self._tokens_per_step = writers, batch_size, tokens_per_step
        self._goodput, self._task_groups, self._epochs = goodput, task_groups, epochs
        self._target_tokens_per_step = 0
        self._add = jax.jit(metrics_lib.add)
        self._process_began = time.monotonic()
        self._begin()

    def _begin(self) -> None:
        self._sum: metrics_lib.Metrics | None = None
        self._timed_steps = 0
        self._began = time.monotonic()
        self._first: dict[str, float] = {}

    def add(self, metrics: metrics_lib.Metrics) -> None:
        """Adds the metrics of a step."""
        self._sum = metrics if self._sum is None else self._add(self._sum, metrics)
        self._timed_steps += 1

    def add_first(
        self, metrics: metrics_lib.Metrics, compilation_seconds: float, data_seconds: float, target_tokens: int
    ) -> None:
        """Adds the metrics of the first step, which compiled; its time does not count for rates.

        Args:
          compilation_seconds, data_seconds: of the step, and until its batch was ready.
          target_tokens: target positions of the global batch, padding included.
        """
        self._target_tokens_per_step = target_tokens
        self._sum = metrics
        self._first = {"timing/compilation_seconds": compilation_seconds, "timing/train_iter_warmup": data_seconds}
        self._began = time.monotonic()

    def begin_stage(self, batch_size: int, tokens_per_step: int, target_tokens: int) -> None:
        """Goes on with batches of another size; what was added before must have been written."""
        self._batch_size, self._tokens_per_step, self._target_tokens_per_step = (
            batch_size,
            tokens_per_step,
            target_tokens,
        )

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A context whose time does not count as training."""
        entered = time.monotonic()
        yield
        self._began += time.monotonic() - entered

    def write(self, step: int) -> dict[str, float]:
        """Writes the scalars since the last call, if there are any, and returns them."""
        if self._sum is None:
            return {}
        scalars = metrics_lib.compute(self._sum, self._task_groups()) | self._first
        scalars |= {f"epochs/{task}": epochs for task, epochs in self._epochs().items()}
        scalars |= self._goodput()
        scalars["timing/uptime"] = time.monotonic() - self._process_began
        if self._timed_steps:
            seconds = max(time.monotonic() - self._began, 1e-9)
            steps = self._timed_steps
            scalars |= rates(seconds, steps, steps * self._batch_size, steps * self._target_tokens_per_step)
            scalars["timing/tokens_per_second"] = steps * self._tokens_per_step / seconds
        for writer in self._writers:
            writer.write_scalars(step, "train", scalars)
        self._begin()
        return scalars
