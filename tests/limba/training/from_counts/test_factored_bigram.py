"""Factored bigrams beside the discounted bigram worked out in whole."""

import numpy as np
import pytest

from limba.training.from_counts import factored_bigram
from limba.training.from_counts.factored_bigram import BigramCounts

PIECES, SEEN, DISCOUNT = 40, slice(3, 33), 0.75


@pytest.fixture(scope="module")
def counts():
    """Of a chain in which each piece has a few followers; ids below 3 and above 32 never come."""
    rng = np.random.default_rng(0)
    text = np.cumsum(rng.choice([1, 1, 1, 2, 7], 5000)) % 30 + 3
    keys, pairs = np.unique(text[:-1] * PIECES + text[1:], return_counts=True)
    return BigramCounts(np.bincount(text, minlength=PIECES), keys, pairs)


def _discounted(counts):
    """Log probabilities of seen pieces after each, interpolated with how many pieces each of them follows."""
    table = np.zeros((PIECES, PIECES))
    table[np.divmod(counts.keys, PIECES)] = counts.counts
    follows = np.where(counts.unigrams > 0, (table > 0).sum(axis=0) + 0.1, 0)
    removed = np.minimum(table, DISCOUNT).sum(axis=1, keepdims=True)
    seen = np.maximum(table - DISCOUNT, 0) + removed * follows / follows.sum()
    seen = seen[SEEN, SEEN]
    return np.log(seen / seen.sum(axis=1, keepdims=True))


def _divergence(counts, bigram):
    expected = _discounted(counts)
    found = bigram.log_probabilities(np.arange(3, 33))[:, SEEN]
    return np.sum(np.exp(expected) * (expected - found), axis=1)


def test_a_fit_of_full_rank_is_the_discounted_bigram(counts):
    bigram = factored_bigram.fit(counts, 29, 10.0, DISCOUNT, 150)
    assert _divergence(counts, bigram).max() < 0.02
    everything = bigram.log_probabilities(np.array([3]))
    assert np.exp(everything).sum() == pytest.approx(1) and np.isneginf(everything[0, :3]).all()


def test_steps_of_a_fit_bring_a_small_rank_nearer(counts):
    near, far = (factored_bigram.fit(counts, 8, 10.0, DISCOUNT, steps) for steps in (60, 0))
    assert _divergence(counts, near).mean() < 0.5 * _divergence(counts, far).mean()
    # The important columns come first, and a text's vectors have the mean 0.
    shares = counts.unigrams / counts.unigrams.sum()
    lengths = shares @ np.square(near.right)
    assert list(lengths) == sorted(lengths, reverse=True)
    np.testing.assert_allclose(shares @ near.left, 0, atol=1e-2)


def test_a_fit_is_the_same_twice_and_its_rank_is_no_more_than_the_pieces(counts):
    first, second = (factored_bigram.fit(counts, 100, 10.0, DISCOUNT, 5) for _ in range(2))
    assert first.rank == 29
    for a, b in ((first.left, second.left), (first.right, second.right), (first.bias, second.bias)):
        np.testing.assert_array_equal(a, b)
    assert not first.left[~first.seen].any() and not first.right[~first.seen].any()


@pytest.fixture(scope="module")
def many():
    """Of a chain of 1,500 pieces, of which a step draws a third; the first half of them is three times as frequent."""
    rng = np.random.default_rng(0)
    text = np.cumsum(rng.choice([1, 2, 7], 60_000)) % 3000
    text = np.where(text < 2250, text % 750, text % 750 + 750)
    keys, pairs = np.unique(text[:-1] * 1500 + text[1:], return_counts=True)
    return BigramCounts(np.bincount(text, minlength=1500), keys, pairs)


def test_steps_with_some_pieces_bring_all_of_them_nearer(many):
    first, second = np.divmod(many.keys, 1500)
    losses = []
    for steps in (0, 60):
        bigram = factored_bigram.fit(many, 64, 10.0, DISCOUNT, steps)
        log_probabilities = bigram.log_probabilities(np.arange(1500))[first, second]
        losses.append(-np.average(log_probabilities, weights=many.counts))
    assert losses[1] < 0.8 * losses[0], losses


def _gradients(fit, parameters, rows):
    residual = fit._residual(parameters, rows)
    of_left = fit._of_left(parameters[1], rows, residual)
    return of_left, *fit._of_followers(parameters[0], rows, residual)(slice(None))


def test_threads_and_blocks_change_no_number(many, monkeypatch):
    made = []
    for threads, pieces in ((1, 1024), (3, 100)):
        monkeypatch.setattr(factored_bigram, "_PIECES_A_BLOCK", pieces)
        made.append(factored_bigram.fit(many, 8, 10.0, DISCOUNT, 3, threads=threads))
    for name, x in made[0].arrays().items():
        np.testing.assert_allclose(made[1].arrays()[name], x, rtol=1e-3, atol=1e-4)


def test_the_gradient_of_some_pieces_is_that_of_all_on_average(many):
    shares, rng = many.unigrams / many.unigrams.sum(), np.random.default_rng(1)
    fit = factored_bigram._Fit(many, shares, many.unigrams > 0, 10.0, DISCOUNT)
    assert fit.drawn.sum() == pytest.approx(512, rel=1e-3) and 0 < fit.drawn.min() < fit.drawn.max() < 1
    assert fit.drawn[5] / fit.drawn[1000] == pytest.approx((fit.weights[5] / fit.weights[1000]) ** 0.5, rel=1e-3)
    parameters = [np.float32(rng.normal(size=(1500, 8))) for _ in range(2)] + [np.float32(np.log(shares))]
    drawn = [np.flatnonzero(rng.random(1500) < fit.drawn) for _ in range(200)]
    some = [_gradients(fit, parameters, rows) for rows in drawn]
    fit.drawn = np.ones(1500, np.float32)
    of_left, *whole = _gradients(fit, parameters, np.arange(1500))
    np.testing.assert_allclose(some[0][0], of_left[drawn[0]], rtol=1e-3, atol=1e-5)
    for i, expected in enumerate(whole, 1):
        estimates = np.stack([gradients[i] for gradients in some])
        error = estimates.std(axis=0) / np.sqrt(len(some)) + 1e-6
        assert np.square((estimates.mean(axis=0) - expected) / error).mean() == pytest.approx(1, abs=0.3)


def test_steps_are_fewer_where_they_would_take_minutes():
    steps = [
        factored_bigram.affordable_steps(size, rank, 160) for size, rank in ((4096, 102), (8192, 102), (32128, 256))
    ]
    assert steps == [160, 160, 47]
