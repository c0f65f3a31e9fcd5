"""Accuracy over pairs, and its intervals beside published ones."""

import math

import pytest

from limba.addons.pairs import pair_metrics
from limba.addons.pairs.pair_metrics import ScoredSentence


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_intervals_are_those_of_newcombe(right, total, low, high):
    """Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    assert pair_metrics.wilson_interval(right, total) == pytest.approx((low, high), abs=5e-5)
    turned = pair_metrics.wilson_interval(total - right, total)
    assert turned == pytest.approx((1 - high, 1 - low), abs=5e-5)


def _sentences(*pairs):
    """Of `(phenomenon, tokens of the right sentence, of the wrong one)`."""
    return [
        ScoredSentence(number, is_right, phenomenon, tokens, "a b")
        for number, (phenomenon, *lengths) in enumerate(pairs)
        for is_right, tokens in zip((True, False), lengths, strict=True)
    ]


def test_accuracy_by_phenomenon_and_by_the_mean_of_tokens():
    targets = _sentences(("x", 2, 1), ("x", 1, 1), ("y", 1, 1), ("", 1, 4))
    # Won by the sum and not by the mean is none; by the mean and not by the sum the first; a tie; lost; won by the sum.
    scores = [-3.0, -2.0, -1.0, -1.0, -2.0, -1.0, -2.0, -4.0]
    found = pair_metrics.pair_accuracy(targets, scores)
    low, high = pair_metrics.wilson_interval(1, 4)
    assert found == {
        "accuracy": 25.0,
        "accuracy_low": 100 * low,
        "accuracy_high": 100 * high,
        "pairs": 4,
        "ties": 1,
        "accuracy_per_token": 25.0,
        "accuracy/x": 0.0,
        "accuracy_low/x": 0.0,
        "pairs/x": 2,
        "ties/x": 1,
        "accuracy_high/x": pytest.approx(65.76, abs=0.01),
        "accuracy/y": 0.0,
        "accuracy_low/y": 0.0,
        "pairs/y": 1,
        "ties/y": 0,
        "accuracy_high/y": pytest.approx(79.35, abs=0.01),
    }


def test_pooled_results_are_those_of_all_pairs():
    targets = _sentences(("x", 2, 1), ("x", 1, 1), ("y", 1, 1), ("", 1, 4), ("y", 3, 2), ("z", 1, 1))
    scores = [-3.0, -2.0, -1.0, -1.0, -2.0, -1.0, -2.0, -4.0, -1.0, -5.0, -1.0, -3.0]
    parts = [pair_metrics.pair_accuracy(targets[a:b], scores[a:b]) for a, b in ((0, 2), (2, 8), (8, 12))]
    whole = pair_metrics.pair_accuracy(targets, scores)
    together = pair_metrics.pooled(parts)
    assert together == pytest.approx(whole) and together["accuracy/y"] == 50 and together["ties"] == 1


def test_order_does_not_matter_and_halves_of_pairs_are_refused():
    targets, scores = _sentences(("", 1, 1), ("", 1, 1)), [-1.0, -2.0, -4.0, -3.0]
    turned = pair_metrics.pair_accuracy(targets[::-1], scores[::-1])
    assert turned == pair_metrics.pair_accuracy(targets, scores) and turned["accuracy"] == 50
    with pytest.raises(ValueError, match="Pair 1 has one sentence: each pair is two examples"):
        pair_metrics.pair_accuracy(targets[:3], scores[:3])


def test_scores_that_are_no_numbers_leave_the_metric_out(caplog):
    assert pair_metrics.pair_accuracy(_sentences(("", 1, 1)), [math.nan, -1.0]) == {}
    assert "The accuracy over pairs is undefined" in caplog.text
