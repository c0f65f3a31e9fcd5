"""Metrics against scikit-learn, SciPy, sacreBLEU, rouge-score, and the rules of SQuAD's official script."""

import collections
import re
import string

import numpy as np
import pytest

from tasks.metrics import ranking_metrics, text_metrics

RNG = np.random.default_rng(0)
# Classes and numbers with ties; predictions that are not a class (-1); all right, all wrong, a single example.
CLASSES = [
    ([0, 1, 1, 0, 1], [0, 1, 0, 0, 1]),
    ([0, 1], [1, 0]),
    ([1, 1, 0], [1, 1, 0]),
    (RNG.integers(0, 3, 60), RNG.integers(-1, 3, 60)),
    (RNG.integers(0, 2, 60), RNG.integers(0, 2, 60)),
]
NUMBERS = [
    ([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 5.0]),
    (np.round(RNG.random(50) * 25) / 5, np.round(RNG.random(50) * 25) / 5),
    ([1, 2], [5, -1]),
]


@pytest.mark.parametrize("pair", CLASSES)
def test_classes_are_scikit_learn_s(pair):
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed (the extra `metrics`)")
    targets, predictions = pair
    assert text_metrics.matthews_corrcoef(targets, predictions)["matthews_corrcoef"] == pytest.approx(
        100 * sklearn.matthews_corrcoef(targets, predictions), abs=1e-9
    )
    assert text_metrics.accuracy(targets, predictions)["accuracy"] == pytest.approx(
        100 * sklearn.accuracy_score(targets, predictions)
    )
    for classes in (2, 3):
        assert text_metrics.mean_multiclass_f1(classes)(targets, predictions)[
            f"mean_{classes}class_f1"
        ] == pytest.approx(
            100 * sklearn.f1_score(targets, predictions, labels=range(classes), average="macro", zero_division=0)
        )
    if max(targets) == 1:
        assert text_metrics.f1_score_with_invalid(targets, predictions)["f1"] == pytest.approx(
            100 * sklearn.f1_score(targets, predictions)
        )
        scores = RNG.integers(0, 5, len(targets)) / 2
        areas = text_metrics.auc(targets, scores)
        assert areas["auc-roc"] == pytest.approx(sklearn.roc_auc_score(targets, scores))
        assert areas["auc-pr"] == pytest.approx(sklearn.average_precision_score(targets, scores))


@pytest.mark.parametrize("pair", CLASSES)
def test_scores_of_classes_are_scikit_learn_s(pair):
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed (the extra `metrics`)")
    targets, predictions = (np.asarray(x) for x in pair)
    there = sorted({*targets.tolist(), *predictions.tolist()} - {-1})
    names = ["not a", "b", "c"]
    report = sklearn.classification_report(
        targets, predictions, labels=there, target_names=[names[x] for x in there], output_dict=True, zero_division=0.0
    )
    expected = {
        f"{ours}_{name.removesuffix('-score')}": pytest.approx(100 * report[theirs][name])
        for ours, theirs in [("macro", "macro avg"), *((names[x].replace(" ", "_"), names[x]) for x in there)]
        for name in ("precision", "recall", "f1-score")
    }
    assert text_metrics.class_scores(names)(targets, predictions) == expected


def test_ranking_is_scikit_learn_s():
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed (the extra `metrics`)")
    for num_classes in (2, 3):
        labels, scores = RNG.integers(0, num_classes, 40), -RNG.random((40, num_classes)) * 9
        targets = [((i, j), labels[i] == j, 1.0, 1) for i in range(40) for j in range(num_classes)]
        found = ranking_metrics.rank_classification(targets, scores.ravel(), num_classes=num_classes)
        best = scores.argmax(axis=1)
        assert found["accuracy"] == pytest.approx(100 * sklearn.accuracy_score(labels, best))
        if num_classes == 3:
            expected = 100 * sklearn.f1_score(labels, best, average="macro")
            assert found == pytest.approx({"accuracy": found["accuracy"], "mean_3class_f1": expected})
            continue
        probability = np.exp(scores[:, 1]) / np.exp(scores).sum(axis=1)
        assert found["f1"] == pytest.approx(100 * sklearn.f1_score(labels, best))
        assert found["auc-roc"] == pytest.approx(100 * sklearn.roc_auc_score(labels, probability))
        assert found["auc-pr"] == pytest.approx(100 * sklearn.average_precision_score(labels, probability))


@pytest.mark.parametrize("pair", NUMBERS)
def test_correlations_are_scipy_s(pair):
    stats = pytest.importorskip("scipy.stats", reason="SciPy is not installed (the extra `metrics`)")
    assert text_metrics.pearson_corrcoef(*pair)["pearson_corrcoef"] == pytest.approx(100 * stats.pearsonr(*pair)[0])
    assert text_metrics.spearman_corrcoef(*pair)["spearman_corrcoef"] == pytest.approx(100 * stats.spearmanr(*pair)[0])


# ------------------------------------------------------- SQuAD -------------------------------------------------------


def _official(prediction, answers):
    """Exact match and F1 by the rules of the official script of SQuAD 1.1, stated on their own here.

    Lower case; without punctuation (each character of it goes, words are joined); without a, an, the; single blanks.
    F1 of bags of words, 0 where nothing is shared, also of two empty texts.
    """

    def words(text):
        letters = "".join(c for c in text.lower() if c not in set(string.punctuation))
        return re.sub(r"\b(a|an|the)\b", " ", letters).split()

    exact = f1 = 0.0
    for answer in answers:
        given, wanted = words(prediction), words(answer)
        exact = max(exact, float(" ".join(given) == " ".join(wanted)))
        shared = sum((collections.Counter(given) & collections.Counter(wanted)).values())
        if shared:
            precision, recall = shared / len(given), shared / len(wanted)
            f1 = max(f1, 2 * precision * recall / (precision + recall))
    return exact, f1


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("Denver Broncos", ["Denver Broncos", "Denver Broncos"], 1, 1),
        ("the  Denver\tBroncos.", ["Denver Broncos"], 1, 1),
        ("Broncos", ["Denver Broncos"], 0, 2 / 3),
        ("U.S.", ["US"], 1, 1),
        ("twenty-one", ["twenty one"], 0, 0),
        ("another theme", ["an other theme"], 0, 2 / 4),
        ("a a b", ["b a"], 1, 1),
        ("b b", ["b"], 0, 2 / 3),
        ("the", ["a"], 1, 0),
        ("", ["x"], 0, 0),
        ("«Ana»", ["Ana"], 0, 0),
    ],
)
def test_squad_is_the_official_script_s(prediction, answers, exact, f1):
    assert _official(prediction, answers) == pytest.approx((exact, f1))
    assert text_metrics.squad([answers], [prediction]) == pytest.approx({"em": 100 * exact, "f1": 100 * f1})


# -------------------------------------------------- BLEU and ROUGE ---------------------------------------------------

SYSTEM = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
REFERENCES = [
    ["The dog bit the man.", "It was not unexpected.", "The man bit him first."],
    ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."],
]


def test_bleu_is_sacrebleu_s():
    """The example of sacreBLEU's README, whose BLEU is 48.53."""
    sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is not installed (the extra `metrics`)")
    assert text_metrics.bleu(REFERENCES, SYSTEM, tokenizer="13a")["bleu"] == pytest.approx(48.530827, abs=1e-5)
    for references in (REFERENCES[:1], REFERENCES):
        expected = sacrebleu.corpus_bleu(SYSTEM, references, tokenize="intl").score
        given = references[0] if len(references) == 1 else references
        assert text_metrics.bleu(given, SYSTEM)["bleu"] == pytest.approx(expected)
    assert text_metrics.bleu(["a b c d"], [""])["bleu"] == 0
    for targets, predictions in ((["a"], []), ([["a"], ["a", "b"]], ["a"]), ([], [])):
        with pytest.raises(ValueError, match="targets and"):
            text_metrics.bleu(targets, predictions)


def test_rouge_is_rouge_score_s():
    scorer = pytest.importorskip(
        "rouge_score.rouge_scorer", reason="rouge-score is not installed (the extra `metrics`)"
    )
    # The example of rouge-score's README: precision, recall and F are 3/4 and 3/5 for ROUGE-1's "quick brown fox".
    target, prediction = "The quick brown fox jumps over the lazy dog", "The quick brown dog jumps on the log."
    expected = scorer.RougeScorer(["rouge1", "rougeL"]).score(target, prediction)
    found = text_metrics.rouge([target], [prediction], score_keys=["rouge1", "rougeL"])
    assert found == pytest.approx({name: 100 * score.fmeasure for name, score in expected.items()})
    assert found["rouge1"] == pytest.approx(100 * 2 * 6 / 17)  # six words of nine and of eight
    pairs = [("a b . c d", "c d . a b"), ("x y z", "z y x"), ("the same", "the same")]
    lines = [tuple(text.replace(" . ", " .\n") for text in pair) for pair in pairs]
    scores = [scorer.RougeScorer(["rougeLsum"]).score(*pair)["rougeLsum"].fmeasure for pair in lines]
    found = text_metrics.rouge(*zip(*pairs, strict=True), score_keys=["rougeLsum"])["rougeLsum"]
    assert found == pytest.approx(100 * np.mean(scores), abs=2)  # the median of a bootstrap
    assert scores[0] == 1  # the order of sentences does not count
    with pytest.raises(ValueError, match="1 targets and 0 predictions"):
        text_metrics.rouge(["a"], [])
