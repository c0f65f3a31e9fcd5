"""Fits in processes of their own, beside the same fits in this one."""

import dataclasses
import logging

import numpy as np
import pytest

from limba.training.from_counts import fit_processes
from limba.training.from_counts.fit_processes import Fit


@pytest.fixture
def fit(counts, monkeypatch):
    monkeypatch.setattr(fit_processes, "_FEWEST_PRODUCTS", 0)
    return Fit(counts, 8, 10.0, 0.75, 4, 0)


def test_processes_make_the_fits_that_were_asked_for_and_a_log_says_how_far_they_are(fit, caplog, monkeypatch):
    monkeypatch.setattr(fit_processes, "_LINE_SECONDS", 0.0)
    caplog.set_level(logging.INFO)
    asked = [fit, dataclasses.replace(fit, rank=4, steps=2)]
    made = dict(fit_processes.make(asked))
    assert sorted(made) == [0, 1]
    for number, bigram in made.items():
        for name, x in asked[number].make().arrays().items():
            np.testing.assert_allclose(bigram.arrays()[name], x, rtol=1e-3, atol=1e-4)
    assert "fitting bigrams: 6 of 6 steps" in caplog.text


def test_a_process_that_ends_early_is_an_error_with_its_reason(fit, capfd):
    with pytest.raises(RuntimeError, match=r"A fit of a start from counts ended early \(exit code 1\)"):
        list(fit_processes.make([dataclasses.replace(fit, discount=None)]))
    assert "TypeError" in capfd.readouterr().err
