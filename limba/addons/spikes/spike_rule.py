"""Which step of a run is a spike: its loss or gradient is far above those of the steps before, or not finite."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from limba.training.spike_guard import SpikeGuard

# The median of distances to the median, times this, is the standard deviation of a normal distribution.
_MAD_TO_DEVIATION = 1.4826


@dataclasses.dataclass(frozen=True)
class Figures:
    """What a step is judged by: the mean loss of a target token in nats, and the gradient's norm if it is known."""

    loss: float
    gradient_norm: float | None = None


def find(guard: SpikeGuard, before: Sequence[Figures], figures: Figures) -> str | None:
    """Why a step is a spike, given the figures of steps before it, oldest first; None if it is not one."""
    if not math.isfinite(figures.loss):
        return f"its loss is {figures.loss}"
    if figures.gradient_norm is not None and not math.isfinite(figures.gradient_norm):
        return f"the norm of its gradient is {figures.gradient_norm}"
    before = before[-guard.window :]
    if len(before) < guard.least:
        return None
    losses = np.array([x.loss for x in before])
    deviations, median = _deviations(figures.loss, losses, 0.01 * abs(float(np.median(losses))))
    if deviations > guard.spread:
        return (
            f"its loss is {figures.loss:.4g}, {deviations:.3g} deviations above the median of {len(before)} steps, "
            f"{median:.4g}"
        )
    norms = [x.gradient_norm for x in before if x.gradient_norm]
    if guard.gradient_spread is None or not figures.gradient_norm or len(norms) < guard.least:
        return None
    deviations, median = _deviations(math.log(figures.gradient_norm), np.log(norms), 0.2)
    if deviations > guard.gradient_spread:
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
