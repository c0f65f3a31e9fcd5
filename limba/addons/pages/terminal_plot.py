"""Losses of runs as curves of characters, drawn by plotille."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from limba.addons.pages import run_curves
from limba.addons.pages.required_packages import plotille
from limba.addons.pages.run_curves import Curves

_COLORS = ("blue", "bright_yellow", "green", "magenta", "red", "cyan", "white", "bright_black")
_LEGEND_AND_AXES = 22  # columns beside a plot
_MOST_POINTS = 500


def draw(runs: Sequence[tuple[str, dict[str, Curves]]], columns: int, rows: int, in_color: bool) -> str:
    """Losses of training and validation over steps; "" if no run has two points of one.

    Args:
      runs: names and curves.
      columns, rows: of the terminal.
    """
    found = [
        (f"{name} ({dataset})" if dataset != run_curves.TRAIN else name, *_points(curves))
        for name, datasets in runs
        for dataset, curves in datasets.items()
        if dataset == run_curves.TRAIN or dataset.startswith(run_curves.TEACHER_FORCED)
    ]
    found = [curve for curve in found if len(curve[1]) > 1]
    if not found:
        return ""
    figure: Any = plotille().Figure()
    figure.width, figure.height = max(20, columns - _LEGEND_AND_AXES), max(5, rows)
    figure.x_label, figure.y_label = "steps", "loss"
    figure.color_mode, figure.with_colors = "names", in_color
    figure.register_label_formatter(float, lambda value, chars, delta, left=False: _label(value, chars, left))
    figure.register_label_formatter(int, lambda value, chars, delta, left=False: _label(value, chars, left))
    figure.set_x_limits(min_=0, max_=float(max(steps[-1] for _, steps, _ in found)))
    for number, (name, steps, losses) in enumerate(found):
        marker = None if in_color or len(found) == 1 else chr(ord("a") + number % 26)
        shown = name if marker is None else f"{marker}: {name}"
        color = _COLORS[number % len(_COLORS)] if in_color else None
        figure.plot(steps.tolist(), losses.tolist(), lc=color, label=shown, marker=marker)
    return figure.show(legend=True)


def _points(curves: Curves) -> tuple[np.ndarray, np.ndarray]:
    name = next((name for name in ("loss", *run_curves.LOSSES) if curves.known(name)), None)
    if name is None:
        return np.array([]), np.array([])
    is_known = np.isfinite(curves.columns[name])
    steps, losses = curves.steps[is_known], curves.columns[name][is_known]
    kept = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_POINTS)).round().astype(int))
    return steps[kept].astype(float), losses[kept]


def _label(value: float, chars: int, left: bool) -> str:
    text = f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return text.ljust(chars) if left else text.rjust(chars)
