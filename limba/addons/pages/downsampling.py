"""Long curves as fewer points that hide nothing: of neighbouring lines the mean, the least and the greatest.

A page of 100,000 lines would be too large to send. A spike of a single step stays visible: it is the edge of the band.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from limba.addons.pages.run_curves import Curves


@dataclasses.dataclass(frozen=True)
class Reduced:
    """The curves of one dataset, with fewer points.

    Attributes:
      steps: `[points]`; of a group the mean.
      means, least, greatest: by metric, `[points]`; NaN where no line of the group has it.
      lines_per_point: how many lines a group has at most; 1 if nothing was left out.
    """

    steps: np.ndarray
    means: Mapping[str, np.ndarray]
    least: Mapping[str, np.ndarray]
    greatest: Mapping[str, np.ndarray]
    lines_per_point: int


def reduce(curves: Curves, names: list[str], most_points: int) -> Reduced:
    """The curves of some metrics, with at most so many points. The first and the last line are points of their own."""
    lines = len(curves.steps)
    chosen = {name: curves.columns[name] for name in names}
    if lines <= max(most_points, 3):
        return Reduced(curves.steps.astype(float), chosen, chosen, chosen, 1)
    # All groups but the first and the last, which are one line each, are about equal.
    edges = np.linspace(1, lines - 1, most_points - 1).round().astype(int)
    begins = np.unique(np.concatenate(([0], edges)))
    sizes = np.diff(np.append(begins, lines))
    steps = np.add.reduceat(curves.steps.astype(float), begins) / sizes
    means = {}
    for name, column in chosen.items():
        is_known = np.isfinite(column)
        counts = np.add.reduceat(is_known.astype(float), begins)
        sums = np.add.reduceat(np.where(is_known, column, 0.0), begins)
        means[name] = np.divide(sums, counts, out=np.full(len(begins), np.nan), where=counts > 0)
    least = {name: np.fmin.reduceat(column, begins) for name, column in chosen.items()}
    greatest = {name: np.fmax.reduceat(column, begins) for name, column in chosen.items()}
    return Reduced(steps, means, least, greatest, int(sizes.max()))
