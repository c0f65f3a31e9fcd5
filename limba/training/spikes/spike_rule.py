"""Which step of a run is a spike: its loss or gradient is far above those of the steps before, or not finite."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_1

PASS_OVER, REPEAT = "pass_over", "repeat"

# The median of distances to the median, times this, is the standard deviation of a normal distribution.
_MAD_TO_DEVIATION = 1.4826


@dataclasses.dataclass(frozen=True)
class Figures:
    """What a step is judged by: the mean loss of a target token in nats, and the gradient's norm if it is known."""

    loss: float
    gradient_norm: float | None = None


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

    def find(self, before: Sequence[Figures], figures: Figures) -> str | None:
        """Why a step is a spike, given the figures of steps before it, oldest first; None if it is not one."""
        if not math.isfinite(figures.loss):
            return f"its loss is {figures.loss}"
        if figures.gradient_norm is not None and not math.isfinite(figures.gradient_norm):
            return f"the norm of its gradient is {figures.gradient_norm}"
        before = before[-self.window :]
        if len(before) < self.least:
            return None
        losses = np.array([x.loss for x in before])
        deviations, median = _deviations(figures.loss, losses, 0.01 * abs(float(np.median(losses))))
        if deviations > self.spread:
            return (
                f"its loss is {figures.loss:.4g}, {deviations:.3g} deviations above the median of {len(before)} steps, "
                f"{median:.4g}"
            )
        norms = [x.gradient_norm for x in before if x.gradient_norm]
        if self.gradient_spread is None or not figures.gradient_norm or len(norms) < self.least:
            return None
        deviations, median = _deviations(math.log(figures.gradient_norm), np.log(norms), 0.2)
        if deviations > self.gradient_spread:
            return (
                f"the norm of its gradient is {figures.gradient_norm:.4g}, {deviations:.3g} deviations above the "
                f"median of {len(norms)} steps, {math.exp(median):.4g} (of logarithms)"
            )
        return None


def _deviations(value: float, before: np.ndarray, least: float) -> tuple[float, float]:
    """How many robust deviations a value is above the median of others, and that median."""
    median = float(np.median(before))
    deviation = max(_MAD_TO_DEVIATION * float(np.median(np.abs(before - median))), least, 1e-9)
    return (value - median) / deviation, median
