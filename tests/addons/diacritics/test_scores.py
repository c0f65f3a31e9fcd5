"""Metrics of restored diacritics on cases worked out by hand."""

import logging

import pytest

from limba.addons.diacritics import marks, scores

METRIC = scores.metric("ro")


def test_right_and_wrong_marks():
    # 5 words, 3 with marks; letters that could have marks: t a, I, a i t, t a a, a t.
    got = METRIC(["Țara îmi pare tare veche"], ["Țara imi pare țare veche"])
    assert got["word_accuracy"] == pytest.approx(60.0)
    assert got["marked_word_accuracy"] == pytest.approx(50.0)
    # ț a a | î i | a | t a  are 8 places, of which î and t are wrong.
    assert got["diacritic_error_rate"] == pytest.approx(100 * 2 / 8)
    assert got["exact_sentences"] == 0.0


def test_perfect_predictions():
    texts = ["Știu că vine.", "fata"]
    assert METRIC(texts, texts) == {
        "word_accuracy": 100.0,
        "marked_word_accuracy": 100.0,
        "diacritic_error_rate": 0.0,
        "exact_sentences": 100.0,
    }


def test_forms_of_a_letter_and_white_space_are_no_errors():
    assert METRIC(["Știință bună"], [" Ştiint\u0326a\u0306  bună\n"])["exact_sentences"] == 100.0


def test_a_changed_letter_is_an_error_with_all_of_its_places():
    got = METRIC(["fața mea"], ["fațo mea"])
    assert (got["word_accuracy"], got["marked_word_accuracy"]) == (50.0, 0.0)
    assert got["diacritic_error_rate"] == pytest.approx(100 * 3 / 4)  # a ț a of 4
    # Punctuation and case are letters that nobody asked to change.
    assert METRIC(["fata."], ["fata"])["word_accuracy"] == 0.0
    assert METRIC(["Fata"], ["fata"])["word_accuracy"] == 0.0


def test_empty_predictions():
    got = METRIC(["fața mea", "și"], ["", "și"])
    assert got["word_accuracy"] == pytest.approx(100 / 3)
    assert got["marked_word_accuracy"] == 50.0
    assert got["diacritic_error_rate"] == pytest.approx(100 * 4 / 6)
    assert got["exact_sentences"] == 50.0


@pytest.mark.parametrize(
    ("target", "prediction", "right", "of"),
    [
        ("a vrut să vină la țară", "a vrut vină la țară", 5, 6),
        ("a vrut să vină la țară", "vrut să vină la țară", 5, 6),
        ("a vrut să vină la țară", "a vrut să să vină la țară", 6, 7),
        ("a vrut să vină", "a vrut să vină vină vină vină", 4, 7),
        ("și mai și", "și și", 2, 3),
        ("si și", "și", 1, 2),
        ("una două trei", "x y", 0, 3),
        ("una două", "doua una două", 2, 3),
    ],
)
def test_other_numbers_of_words(target, prediction, right, of):
    assert METRIC([target], [prediction])["word_accuracy"] == pytest.approx(100 * right / of)


def test_alignment_says_what_lacks_and_what_was_added():
    plain = marks.rules_of("ro").without_marks
    pairs = scores.align(["el", "și", "ea"], ["el", "ea", "ai"], plain)
    assert pairs == [("el", "el"), ("și", None), ("ea", "ea"), (None, "ai")]
    assert scores.align([], ["a"], plain) == [(None, "a")]


def test_an_undefined_metric_is_left_out_and_said_once(caplog):
    with caplog.at_level(logging.WARNING):
        got = METRIC(["fata mea", "ea"], ["fata mea", "ea"])
    assert set(got) == {"word_accuracy", "diacritic_error_rate", "exact_sentences"}
    assert [r.getMessage() for r in caplog.records] == [
        "marked_word_accuracy is undefined, because no target word has marks; it is left out."
    ]
    caplog.clear()
    assert METRIC([], []) == {}
    assert len(caplog.records) == 4 and "there are no examples" in caplog.text
    assert METRIC(["", ""], ["", "x"]) == {"word_accuracy": 0.0, "exact_sentences": 50.0}


def test_without_a_language_any_letter_that_could_have_marks_counts():
    got = scores.metric(None)(["çok é"], ["cok é"])
    assert got["diacritic_error_rate"] == pytest.approx(100 * 1 / 4)  # ç o k é all could


def test_signs_that_stand_at_any_letter():
    got = scores.metric("he")(["שָׁלוֹם"], ["שלוֹם"])
    assert got["diacritic_error_rate"] == pytest.approx(100 * 1 / 4)


def test_bad_input():
    with pytest.raises(ValueError, match="1 targets and 2 predictions"):
        METRIC(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="'xx'"):
        scores.metric("xx")
