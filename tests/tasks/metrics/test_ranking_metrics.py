import logging

import pytest

from tasks.metrics import ranking_metrics, text_metrics


def _choices(correct, scores):
    """Targets and scores of `[example][choice]`, as the postprocessor makes them."""
    numbered = [(i, j) for i, row in enumerate(correct) for j in range(len(row))]
    targets = [(index, correct[index[0]][index[1]], 1.0, 2 + index[1]) for index in numbered]
    return targets, [scores[i][j] for i, j in numbered]


def test_the_likeliest_choice_is_the_answer():
    # Right, right, wrong, right; of class 1 one of two is found.
    correct = [[True, False], [False, True], [False, True], [True, False]]
    scores = [[-1.0, -3.0], [-2.0, -1.0], [-1.0, -1.5], [-0.1, -0.2]]
    found = ranking_metrics.rank_classification(*_choices(correct, scores), num_classes=2)
    # Margins of class 1: -2, 1 (right), -0.5 (right), -0.1: three of four pairs are in order.
    expected = {"accuracy": 75.0, "f1": 100 * 2 / 3, "auc-roc": 75.0, "auc-pr": 100 * (0.5 + 0.5 * 2 / 3)}
    assert found == pytest.approx(expected)
    targets, flat = _choices(correct, scores)
    assert ranking_metrics.rank_classification(targets[::-1], flat[::-1], num_classes=2) == found  # in any order
    # By tokens (2 and 3): -0.5 and -1, -1 and -1/3, -0.5 and -0.5 (the first wins), -0.05 and -0.067.
    by_length = ranking_metrics.rank_classification(targets, flat, num_classes=2, normalize_by_target_length=True)
    assert by_length["accuracy"] == 75.0


def test_choices_may_differ_and_several_may_be_right():
    correct, scores = [[True, True, False], [False, True]], [[-3.0, -1.0, -2.0], [-1.0, -2.0]]
    assert ranking_metrics.rank_classification(*_choices(correct, scores)) == {"accuracy": 50.0}
    targets, flat = _choices(correct, scores)
    assert ranking_metrics.rank_classification(targets[:3], flat[:3], num_classes=3) == {"accuracy": 100.0}
    with pytest.raises(ValueError, match=r"3 classes, and examples with \[2, 3\] choices"):
        ranking_metrics.rank_classification(targets, flat, num_classes=3)


def test_other_metrics_of_the_best_choice():
    correct = [[True, False], [False, True], [False, True]]
    targets, scores = _choices(correct, [[0.0, -1.0], [-1.0, 0.0], [0.0, -1.0]])
    metric = ranking_metrics.of_best_choice(ranking_metrics.rank_classification, [text_metrics.matthews_corrcoef])
    assert metric(targets, scores) == pytest.approx({"accuracy": 200 / 3, "matthews_corrcoef": 50.0})


def test_what_is_undefined_says_so(caplog):
    with caplog.at_level(logging.WARNING):
        rank = ranking_metrics.of_best_choice(ranking_metrics.rank_classification, [text_metrics.accuracy])
        assert rank(*_choices([[False, True]], [[float("nan"), -2.0]])) == {}
        found = ranking_metrics.rank_classification(*_choices([[False, True]], [[-1.0, -2.0]]), num_classes=2)
    assert found == {"accuracy": 0.0, "f1": 0.0}
    assert "The likeliest choice is undefined and left out: 1 of 2 scores are NaN" in caplog.text
    assert "1 positive and 0 negative" in caplog.text
