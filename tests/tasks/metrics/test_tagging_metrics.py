"""Entities are counted as seqeval counts them, and words one by one."""

import pytest

from tasks.metrics import tagging_metrics

TARGETS = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"], ["B-LOC"]]
PREDICTIONS = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"], ["B-ORG"]]


def test_entities():
    # By hand, by the rules of conlleval: an I- of another kind, or after O, begins an entity.
    labels = ["I-PER", "I-PER", "I-LOC", "B-LOC", "I-LOC", "O", "I-A-B", "B-A-B"]
    found = [("PER", 0, 2), ("LOC", 2, 3), ("LOC", 3, 5), ("A-B", 6, 7), ("A-B", 7, 8)]
    assert list(tagging_metrics.entities(labels)) == found
    assert list(tagging_metrics.entities([])) == list(tagging_metrics.entities(["O"])) == []


def test_entity_f1():
    # seqeval's own example, in which one of two entities is right, and a third that is of another kind.
    assert tagging_metrics.entity_f1(TARGETS[:2], PREDICTIONS[:2])["entity_f1"] == 50
    found = tagging_metrics.entity_f1(TARGETS, [*PREDICTIONS[:2], ["O"]])
    overall = {"entity_precision": 50, "entity_recall": pytest.approx(100 / 3), "entity_f1": pytest.approx(40)}
    # As seqeval's classification_report has them: PER is right, MISC wrong, LOC never predicted.
    scores = {"LOC": 0, "MISC": 0, "PER": 100, "macro": pytest.approx(100 / 3)}
    of_kinds = {f"{kind}_{name}": x for kind, x in scores.items() for name in ("precision", "recall", "f1")}
    assert found == overall | of_kinds
    assert tagging_metrics.entity_f1(TARGETS, PREDICTIONS)["entity_f1"] == pytest.approx(100 / 3)
    # The same entity in another text is another.
    assert tagging_metrics.entity_f1([["B-A"], ["O"]], [["O"], ["B-A"]])["entity_f1"] == 0
    assert tagging_metrics.entity_f1([["O"]], [["O"]])["entity_f1"] == 0


def test_the_scores_of_run_ner():
    # PER is right, MISC wrong, LOC another kind; of 11 words 8 are right.
    overall = {"precision": 100 / 3, "recall": 100 / 3, "f1": 100 / 3, "accuracy": 100 * 8 / 11}
    assert tagging_metrics.ner_scores(False)(TARGETS, PREDICTIONS) == pytest.approx(overall)
    kinds = {"LOC": (0, 1), "MISC": (0, 1), "ORG": (0, 0), "PER": (100, 1)}
    expected = {f"{kind}_{name}": x for kind, (x, _) in kinds.items() for name in ("precision", "recall", "f1")}
    expected |= {f"{kind}_number": number for kind, (_, number) in kinds.items()}
    expected |= {f"overall_{name}": x for name, x in overall.items()}
    assert tagging_metrics.ner_scores(True)(TARGETS, PREDICTIONS) == pytest.approx(expected)


def test_token_accuracy_and_what_the_most_frequent_label_reaches():
    found = tagging_metrics.token_accuracy(TARGETS, PREDICTIONS)
    assert found == {"accuracy": pytest.approx(100 * 8 / 11), "majority_accuracy": pytest.approx(100 * 4 / 11)}


def test_scores_of_words():
    found = tagging_metrics.word_scores(["NOUN", "VERB", "ADP"])(
        [["NOUN", "VERB"], ["NOUN"]], [["NOUN", "NOUN"], ["X"]]
    )
    scores = {"NOUN": (50, 50, 50), "VERB": (0, 0, 0), "macro": (25, 25, 25)}
    names = ("precision", "recall", "f1")
    of_labels = {label: [found[f"{label}_{name}"] for name in names] for label in scores}
    assert of_labels == {label: list(values) for label, values in scores.items()} and len(found) == 9


def test_texts_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="Text 1 has 3 words and 1 predicted labels"):
        tagging_metrics.entity_f1(TARGETS[:2], [PREDICTIONS[0], ["O"]])
    with pytest.raises(ValueError, match="no words to measure"):
        tagging_metrics.token_accuracy([[]], [[]])


@pytest.mark.parametrize(
    ("labels", "expected"),
    [(["O", "B-PER", "I-PER"], True), (["B-PER", "I-PER"], False), (["O", "PER"], False), (["O", "B-"], False)],
)
def test_are_bio(labels, expected):
    assert tagging_metrics.are_bio(labels) is expected
