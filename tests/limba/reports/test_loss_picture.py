"""Curves as a PNG lie where their numbers are."""

import io
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib import image

from limba.reports import loss_picture


def pixels(curves, *labels) -> np.ndarray:
    """`[height, width, 3]`, of 0 to 255."""
    found = image.imread(io.BytesIO(loss_picture.draw(curves, *labels)))[..., :3]
    return np.rint(255 * found).astype(int)


def test_curves_lie_where_their_numbers_are():
    """One falls from 10 to 2, one stays at 4, where the first is after three quarters of its way."""
    falling, level = [(0, 10.0), (100, 2.0)], [(i, 4.0) for i in range(101)]
    found = pixels([("training", falling), ("validation", level)], "steps", "loss")
    assert found.shape == (loss_picture.HEIGHT, loss_picture.WIDTH, 3)
    blue, orange = (np.abs(found - color).sum(-1) < 30 for color in loss_picture.COLORS[:2])
    # The level line spans all x; its row is the one with the most orange.
    level_row = orange.sum(1).argmax()
    columns = np.flatnonzero(orange[level_row])
    left, right = columns.min(), columns.max()
    top, bottom = (np.flatnonzero(blue[:, x]).mean() for x in (left + 2, right - 2))
    assert right - left > 900 and bottom - top > 400
    assert abs(level_row - (top + 0.75 * (bottom - top))) < 3
    for share in (0.1, 0.3, 0.5, 0.9):
        x = round(left + share * (right - left))
        assert abs(np.flatnonzero(blue[:, x]).mean() - (top + share * (bottom - top))) < 3


def test_dots_are_not_joined():
    """Trials that were drawn at random have no order."""
    curves = [("trials", [(0, 1.0), (10, 1.0)]), ("best", [(0, 2.0), (10, 3.0)])]
    joined, apart = (
        np.abs(np.rint(255 * image.imread(io.BytesIO(content))[..., :3]) - loss_picture.COLORS[0]).sum(-1) < 30
        for content in (loss_picture.draw(curves, "trial", "loss", dots=dots) for dots in ((), ("trials",)))
    )
    assert joined.any(0).sum() > 900 and 5 < apart.any(0).sum() < 100


@pytest.mark.parametrize(
    "curve", [[(1, -2.5)], [(1_000_000, 2.5), (1_020_000, 2.50001)], [(i, 1e5 * i) for i in range(5000)]]
)
def test_every_range_can_be_drawn(curve):
    found = pixels([("training", curve)], "steps", "loss")
    assert found.shape == (loss_picture.HEIGHT, loss_picture.WIDTH, 3)


def test_without_matplotlib_nothing_is_drawn_or_said(monkeypatch, caplog):
    """Nobody has asked for the picture of a card; `limba scoreboard --picture` says what it needs."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert loss_picture.draw([("training", [(0, 1.0), (1, 0.5)])], "steps", "loss") is None
    assert not caplog.records


def test_settings_of_the_working_directory_draw_nothing(monkeypatch):
    """A matplotlibrc there could have LaTeX, a program, write the texts."""
    curve = [("training", [(0, 1.0), (1, 0.5)])]
    expected = loss_picture.draw(curve, "steps", "loss")
    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)
    assert loss_picture.draw(curve, "steps", "loss") == expected
