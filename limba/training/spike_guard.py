"""When a run goes back to a checkpoint by itself; an add-on looks for spikes of the loss, and does it."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any, Protocol

from limba.addons import table
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_1
from limba.files.storage import AnyPath
from limba.models.metrics import Metrics

logger = logging.getLogger(__name__)

PASS_OVER, REPEAT = "pass_over", "repeat"


@dataclasses.dataclass(frozen=True)
class SpikeGuard:
    """When a run goes back to a checkpoint by itself; `train.spikes` is bound to it.

    A step is a spike if its loss or the norm of its gradient is not finite; if its loss is more than `spread` robust
    standard deviations above the median of the last `window` losses; or if the logarithm of its norm is
    `gradient_spread` of them above that of the last norms. A robust deviation is 1.4826 times the median distance to
    the median (Hampel, 1974), which the spikes themselves do not widen, and at least 1 % of the median loss; of
    logarithms of norms at least 0.2.

    Norms are known where `Trainer.measures_gradient` is True, or `weight_metrics_computer` measures them.

    Attributes:
      window: steps that a step is compared with.
      least: steps that must have been seen before one can be a spike; one that is not finite always is.
      spread, gradient_spread: as above; None does not look at the gradient.
      remedy: "pass_over" goes on with the batch after the spike; "repeat" takes the same batches with other dropout.
      most, within: more than `most` goings back within `within` steps end the run.

    Raises:
      ValueError: for a value that cannot be meant.
    """

    window: int = 256
    least: int = 64
    spread: float = 12.0
    gradient_spread: float | None = 20.0
    remedy: str = PASS_OVER
    most: int = 5
    within: int = 10_000

    def __post_init__(self) -> None:
        for name in ("window", "least", "most", "within"):
            number_ranges.check(f"SpikeGuard.{name}", getattr(self, name), AT_LEAST_1)
        for name in ("spread", "gradient_spread"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise ValueError(f"SpikeGuard.{name} is {value!r}; it is a number of standard deviations above 0.")
        if self.spread is None:
            raise ValueError("SpikeGuard.spread is None; train.spikes = None looks for no spikes.")
        if self.least > self.window:
            raise ValueError(f"SpikeGuard.least is {self.least}, more than the {self.window} steps of its window.")
        if self.remedy not in (PASS_OVER, REPEAT):
            raise ValueError(f"SpikeGuard.remedy is {self.remedy!r}; use {PASS_OVER!r} or {REPEAT!r}.")


class Spikes(Protocol):
    """The spikes of a run."""

    def see(self, step: int, metrics: Metrics, stage: str = "") -> str | None:
        """Why a step is a spike; None if it is not one. Each step is shown once, in order."""

    def state_files(self) -> dict[str, bytes]:
        """What a checkpoint of the last step has in `run/`."""

    def go_back(self, step: int, reason: str, describe: Callable[[], Exception]) -> Exception:
        """The error that ends the loop: a `run_end.StartsAgainError`, or why the run cannot go back (`describe`)."""


def check(guard: SpikeGuard | None, checkpoint: AnyPath) -> None:
    """Raises ValueError if the file of a run's checkpoint with the figures of its last steps is damaged."""
    for part in () if guard is None else table.parts("spikes"):
        part.check(checkpoint)


def begin(guard: SpikeGuard | None, **run: Any) -> Spikes | None:
    """The spikes of a run, whose batches and dropout are made ready; None where nothing looks for them.

    Args:
      run: its `directory`, `checkpointer`, `save`, `trainer`, `batches`, `step` and `resumed`.
    """
    if guard is None:
        return None
    for part in table.parts("spikes"):
        return part.begin(guard, **run)
    logger.warning("This run looks for no spikes (train.spikes): this Limba lacks the add-on that does.")
    return None
