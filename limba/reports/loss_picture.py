"""Curves over steps or trials as a PNG, drawn by matplotlib where it is installed."""

import io
from collections.abc import Sequence
from typing import Any

WIDTH, HEIGHT = 1200, 620
# Different to every eye: blue and orange first, then those of Okabe and Ito.
COLORS = (
    *((31, 119, 180), (255, 127, 14), (0, 158, 115), (204, 121, 167)),
    *((0, 0, 0), (86, 180, 233), (213, 94, 0), (240, 228, 66)),
)
_DPI = 100

Curve = tuple[str, Sequence[tuple[float, float]]]


def draw(curves: Sequence[Curve], x_label: str, y_label: str, dots: Sequence[str] = ()) -> bytes | None:
    """A PNG of at most eight curves; None where matplotlib, an extra that few ask for, is missing.

    Args:
      curves: each a label and its points (x, y) in the order of x, x in whole numbers.
      x_label: of the axis below.
      y_label: of the axis on the left.
      dots: the labels of curves whose points are not joined, because neighbours have nothing to do with each other.
    """
    try:
        from matplotlib import style
    except ImportError:
        return None
    # Not by the working directory's matplotlibrc, which may have LaTeX write the texts.
    with style.context("default"):
        return _draw(curves, x_label, y_label, dots)


def _draw(curves: Sequence[Curve], x_label: str, y_label: str, dots: Sequence[str]) -> bytes:
    from matplotlib import figure, ticker
    from matplotlib.backends import backend_agg

    picture = figure.Figure((WIDTH / _DPI, HEIGHT / _DPI), dpi=_DPI, layout="constrained")
    axes = picture.add_subplot(xlabel=x_label, ylabel=y_label)
    for (label, points), color in zip(curves, COLORS, strict=False):
        marker = "o" if len(points) <= 40 or label in dots else ""
        style = "" if label in dots else "-"
        form: dict[str, Any] = {"color": [x / 255 for x in color], "marker": marker, "linestyle": style, "linewidth": 2}
        axes.plot(*zip(*points, strict=True), label=label, **form)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))  # 200k, 1.2M
    axes.grid(axis="y", alpha=0.4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    content = io.BytesIO()
    backend_agg.FigureCanvasAgg(picture).print_png(content)
    return content.getvalue()
