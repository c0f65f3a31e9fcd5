"""Counts of a text of pieces, for networks that begin from them."""

import numpy as np
import pytest

from limba.training.from_counts.factored_bigram import BigramCounts

PIECES = 128


@pytest.fixture(scope="package")
def text():
    """A chain over pieces from 3 to 62 of `PIECES`."""
    rng = np.random.default_rng(0)
    return np.cumsum(rng.choice([1, 1, 1, 2, 7], 20000)) % 60 + 3


@pytest.fixture(scope="package")
def counts(text):
    """Of pieces that follow each other."""
    keys, pairs = np.unique(text[:-1] * PIECES + text[1:], return_counts=True)
    return BigramCounts(np.bincount(text, minlength=PIECES), keys, pairs)
