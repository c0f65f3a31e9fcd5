"""Fewer points, and no extreme is lost."""

import numpy as np
import pytest

from limba.addons.pages import downsampling
from limba.addons.pages.run_curves import Curves


def _curves(lines=100_000):
    steps = np.arange(1, lines + 1)
    loss = 2 + 5 / np.sqrt(steps)
    loss[77_776] = 40.0  # of one step
    loss[12_345] = 0.5
    loss[50_000:50_010] = np.nan
    return Curves(steps, {"loss": loss, "never": np.full(lines, np.nan)})


@pytest.mark.parametrize("most", [30, 1000])
def test_extremes_ends_and_means_are_kept(most):
    curves = _curves()
    reduced = downsampling.reduce(curves, ["loss", "never"], most)
    assert len(reduced.steps) == most
    assert np.nanmax(reduced.greatest["loss"]) == 40.0 and np.nanmin(reduced.least["loss"]) == 0.5
    # The spike is where it was, within a group.
    at = reduced.steps[np.nanargmax(reduced.greatest["loss"])]
    assert abs(at - 77_777) <= reduced.lines_per_point / 2
    assert (reduced.steps[0], reduced.steps[-1]) == (1.0, 100_000.0)
    assert reduced.means["loss"][[0, -1]].tolist() == curves.columns["loss"][[0, -1]].tolist()
    assert (reduced.least["loss"] <= reduced.means["loss"]).all()
    assert (reduced.means["loss"] <= reduced.greatest["loss"]).all()
    assert np.isnan(reduced.means["never"]).all() and np.isnan(reduced.greatest["never"]).all()
    assert 100_000 / most <= reduced.lines_per_point <= 100_000 / (most - 2) + 1


def test_the_mean_of_a_group_leaves_out_what_is_missing():
    curves = Curves(np.arange(6), {"x": np.array([1.0, 2.0, np.nan, 4.0, 6.0, 9.0])})
    reduced = downsampling.reduce(curves, ["x"], 4)
    assert reduced.steps.tolist() == [0.0, 1.5, 3.5, 5.0]
    assert reduced.means["x"].tolist() == [1.0, 2.0, 5.0, 9.0] and reduced.lines_per_point == 2
    assert reduced.least["x"].tolist() == [1.0, 2.0, 4.0, 9.0]
    assert reduced.greatest["x"].tolist() == [1.0, 2.0, 6.0, 9.0]


def test_short_curves_stay_as_they_are():
    curves = Curves(np.array([3, 9]), {"x": np.array([1.0, np.nan])})
    reduced = downsampling.reduce(curves, ["x"], 2)
    assert reduced.steps.tolist() == [3.0, 9.0] and reduced.means["x"] is curves.columns["x"]
    assert reduced.lines_per_point == 1
