"""Values worked out by hand, or from the definitions; test_metrics_agreement.py compares with other libraries."""

import logging
import tracemalloc

import numpy as np
import pytest

from tasks.metrics import metric_packages, text_metrics


def test_accuracies():
    assert text_metrics.accuracy(["a", "b", "c", "d"], ["a", "b", "c", "x"]) == {"accuracy": 75.0}
    assert text_metrics.sequence_accuracy([[1, 2], [3]], [[1, 2], [4]]) == {"sequence_accuracy": 50.0}
    assert text_metrics.all_match([1, 2], [1, 2]) == {"exact_match": 100.0}
    assert text_metrics.all_match([1, 2], [1, 3]) == {"exact_match": 0.0}
    with pytest.raises(ValueError, match="1 targets and 2 predictions"):
        text_metrics.accuracy(["a"], ["a", "b"])


def test_squad_takes_the_best_answer_and_forgives_case_articles_and_punctuation():
    assert text_metrics.squad([["The cat!"]], ["cat"]) == {"em": 100.0, "f1": 100.0}
    # Three of four predicted words, of three: precision 3/4, recall 1.
    scores = text_metrics.squad([["no", "big black cat"]], ["big black cat sat"])
    assert scores["em"] == 0
    assert scores["f1"] == pytest.approx(100 * 2 * 3 / 7)
    assert text_metrics.squad([["x"], ["y"]], ["x", "z"]) == {"em": 50.0, "f1": 50.0}


def test_a_text_is_one_answer_and_not_its_letters():
    assert text_metrics.squad(["yes it is", "yes"], ["yes it is", "y"]) == {"em": 50.0, "f1": 50.0}
    assert text_metrics.trivia_qa(["東京です"], ["東"])["em"] == 0
    assert text_metrics.squad_v2(["yes it is", ""], ["yes it is", "y"]) == {
        "exact": 50.0,
        "f1": 50.0,
        "HasAns_exact": 100.0,
        "HasAns_f1": 100.0,
        "NoAns_exact": 0.0,
        "NoAns_f1": 0.0,
    }


def test_rouge_of_the_same_answers_is_the_same_and_leaves_numpy_s_generator():
    targets = [f"the {word} cat sat on the mat" for word in ["big", "black", "old", "fat", "young", "thin"]]
    predictions = [f"the cat sat on {word}" for word in ["a", "the", "one", "mat", "it", "the"]]
    np.random.seed(7)
    drawn, scores = np.random.rand(), text_metrics.rouge(targets, predictions)
    np.random.seed(7)
    np.random.rand()
    following = np.random.rand()
    np.random.seed(7)
    assert np.random.rand() == drawn and text_metrics.rouge(targets, predictions) == scores
    assert np.random.rand() == following
    np.random.seed(8)
    assert text_metrics.rouge(targets, predictions) == scores


def test_trivia_qa_takes_punctuation_for_blanks():
    assert text_metrics.trivia_qa([["jean-paul"]], ["Jean Paul"])["em"] == 100
    assert text_metrics.squad([["jean-paul"]], ["Jean Paul"])["em"] == 0


def test_span_squad():
    targets = [{"answers": ["black cat"], "context": "the black cat, sat"}] * 3
    assert text_metrics.span_squad(targets, ["start: 1 end: 2", "start: 0 end: 2", "start: ² end: ²"]) == pytest.approx(
        {"em": 200 / 3, "f1": 200 / 3}
    )


def test_f1():
    # One hit, one false alarm (5 counts as the wrong class of a 0), one miss.
    assert text_metrics.f1_score_with_invalid([1, 0, 1, 0], [1, 5, 0, 0]) == {"f1": 50.0}
    assert text_metrics.multirc_f1_over_all_answers([{"value": 1}], [{"value": 1}]) == {"f1": 100.0}
    # Classes 0: 2/3, 1: 2/3, 2: none there, which is 0.
    scores = text_metrics.mean_multiclass_f1(3)([0, 0, 1], [0, 1, 1])
    assert scores == {"mean_3class_f1": pytest.approx(100 * (2 / 3 + 2 / 3) / 3)}


def test_correlations():
    assert text_metrics.pearson_corrcoef([1, 2, 3], [2, 4, 6]) == {"pearson_corrcoef": pytest.approx(100)}
    assert text_metrics.spearman_corrcoef([1, 2, 3], [1, 8, 27]) == {"spearman_corrcoef": pytest.approx(100)}
    assert text_metrics.mse([1, 2, 3], [1, 4, 2.5]) == {"mse": pytest.approx(4.25 / 3)}
    # Ties share a rank: ranks 1, 2.5, 2.5 against 1, 2, 3.
    expected = np.corrcoef([1, 2.5, 2.5], [1, 2, 3])[0, 1]
    assert text_metrics.spearman_corrcoef([0, 7, 7], [1, 2, 3])["spearman_corrcoef"] == pytest.approx(100 * expected)


def test_auc(caplog):
    # Of six pairs of a positive and a negative, four are in order and one ties.
    scores = text_metrics.auc([1, 1, 0, 0, 0], [0.9, 0.4, 0.5, 0.4, 0.1])
    assert scores["auc-roc"] == pytest.approx(4.5 / 6)
    # Recall 1/2 at precision 1; the rest comes with the two that tie, at precision 2/4.
    assert scores["auc-pr"] == pytest.approx(0.5 * 1 + 0.5 * 0.5)
    assert text_metrics.score_auc([3.0, 1.0], [2, 1], targets_threshold=2)["auc-roc"] == 1
    with caplog.at_level(logging.WARNING):
        assert text_metrics.auc([0, 0], [1, 2]) == {}
    assert "0 positive and 2 negative" in caplog.text


def test_auc_of_many_scores():
    rng = np.random.default_rng(0)
    targets, scores = rng.integers(0, 2, 4000), rng.integers(0, 3000, 4000) / 7
    tracemalloc.start()
    areas = text_metrics.auc(targets, scores)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6  # a matrix of scores by thresholds has 9 MB
    thresholds = sorted(set(scores), reverse=True)
    hits = np.asarray([np.sum(targets[scores >= t]) for t in thresholds])
    precision = hits / [np.sum(scores >= t) for t in thresholds]
    assert areas["auc-pr"] == pytest.approx(np.sum(np.diff(hits, prepend=0) * precision) / targets.sum(), rel=1e-12)


# ------------------------------------------------- what is undefined -------------------------------------------------


def test_what_is_undefined_says_so_and_is_never_nan(caplog):
    with caplog.at_level(logging.WARNING):
        assert text_metrics.pearson_corrcoef([1, 2, 3], [2, 2, 2]) == {"pearson_corrcoef": 0.0}
        assert text_metrics.spearman_corrcoef([4.5, 4.5], [1, 2]) == {"spearman_corrcoef": 0.0}
        assert text_metrics.matthews_corrcoef([1, 1, 1], [0, 1, 1]) == {"matthews_corrcoef": 0.0}
        assert text_metrics.matthews_corrcoef([0, 1, 1], [1, 1, 1]) == {"matthews_corrcoef": 0.0}
        for metric in (text_metrics.pearson_corrcoef, text_metrics.spearman_corrcoef, text_metrics.auc):
            assert metric([0, 1, 1], [0.1, float("nan"), 0.3]) == {}
    for words in (
        "Pearson's correlation is undefined, and given as 0: all predictions are the same",
        "Spearman's correlation is undefined, and given as 0: all targets are the same",
        "by convention: the targets are of one class only",
        "by convention: the predictions are of one class only",
        "Spearman's correlation is undefined and left out: 1 of 3 predictions are NaN or infinite",
    ):
        assert words in caplog.text


_TEXT_METRICS = [text_metrics.squad, text_metrics.trivia_qa]
_METRICS = [
    *(
        text_metrics.accuracy,
        text_metrics.majority_accuracy,
        text_metrics.matthews_corrcoef,
        text_metrics.f1_score_with_invalid,
    ),
    *(
        text_metrics.pearson_corrcoef,
        text_metrics.spearman_corrcoef,
        text_metrics.auc,
        text_metrics.mean_multiclass_f1(2),
    ),
    *(
        text_metrics.all_match,
        text_metrics.mean_group_metric(text_metrics.accuracy),
        text_metrics.deduplicate_metric(text_metrics.accuracy),
    ),
]


@pytest.mark.parametrize("metric", [*_METRICS, *_TEXT_METRICS])
def test_unequal_lengths_and_nothing_at_all_are_refused(metric):
    example = [["a"]] if metric in _TEXT_METRICS else [1]
    with pytest.raises(ValueError, match="1 targets and 0 predictions"):
        metric(example, [])
    with pytest.raises(ValueError, match="the split is empty"):
        metric([], [])


def test_questions_without_answers_are_named():
    with pytest.raises(ValueError, match="1 of 2 questions have no answer to compare with; the first is number 1"):
        text_metrics.squad([["a"], []], ["a", "b"])


def test_empty_predictions_are_counted(caplog):
    with caplog.at_level(logging.WARNING):
        assert text_metrics.squad([["x"], ["y"], ["z"]], ["", " ", "z"])["em"] == pytest.approx(100 / 3)
    assert "2 of 3 predictions are empty" in caplog.text


def test_many_classes_have_their_means_only():
    found = text_metrics.class_scores([str(i) for i in range(21)])([0, 20], [0, 19])
    assert found == {name: pytest.approx(100 / 3) for name in ("macro_precision", "macro_recall", "macro_f1")}


def test_majority():
    assert text_metrics.majority_accuracy(["a", "b", "a", "c"], ["c"] * 4) == {"majority_accuracy": 50.0}


def test_groups():
    pairs = [("a", 1, 1), ("a", 1, 0), ("b", 1, 1)]
    targets = [{"group": group, "value": target} for group, target, _ in pairs]
    predictions = [{"group": group, "value": prediction} for group, _, prediction in pairs]
    assert text_metrics.deduplicate_metric(text_metrics.accuracy)(targets, predictions) == {"accuracy": 100.0}
    scores = text_metrics.mean_group_metric(text_metrics.accuracy, return_subgroup_scores=True)(targets, predictions)
    assert scores == {"accuracy": 75.0, "a-accuracy": 50.0, "b-accuracy": 100.0}


def test_bleu():
    pytest.importorskip("sacrebleu", reason="sacrebleu is not installed (the extra `metrics`)")
    assert text_metrics.bleu(["the cat sat on the mat"], ["the cat sat on the mat"])["bleu"] == pytest.approx(100)
    assert text_metrics.bleu([["", "a b c d"], ["a b c d", ""]], ["a b c d", "a b c d"])["bleu"] == pytest.approx(100)
    assert text_metrics.bleu(["the cat sat"], ["dogs"])["bleu"] == 0


def test_rouge():
    pytest.importorskip("rouge_score", reason="rouge-score is not installed (the extra `metrics`)")
    scores = text_metrics.rouge(["the black cat"], ["the cat"])
    assert scores["rouge1"] == pytest.approx(80)  # precision 1, recall 2/3
    assert scores["rouge2"] == 0


def test_what_is_not_installed_says_how_to_get_it(monkeypatch):
    def absent(module):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(metric_packages.importlib, "import_module", absent)
    with pytest.raises(ModuleNotFoundError, match=r"needs sacrebleu: pip install 'limba\[metrics\]'"):
        text_metrics.bleu(["a"], ["a"])
    with pytest.raises(ModuleNotFoundError, match=r"needs sklearn\.metrics"):
        text_metrics.sklearn_metrics_wrapper("matthews_corrcoef")([0], [0])
