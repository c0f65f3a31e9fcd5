"""The texts of T5's preprocessors, as their docstrings and released checkpoints have them, written out."""

import re

import pytest

from tasks.supervised import row_formats as formats
from tasks.supervised.dataset_table import DATASETS, GLUE, SUPER_GLUE


def _one(name, row):
    (example,) = DATASETS[name].format(row)
    return example.inputs, example.targets


def _rows(*columns):
    return {column: column.upper() for column in columns}


@pytest.mark.parametrize(
    ("name", "inputs", "labels"),
    [
        ("glue_cola", "cola sentence: SENTENCE", "unacceptable acceptable"),
        ("glue_sst2", "sst2 sentence: SENTENCE", "negative positive"),
        ("glue_mrpc", "mrpc sentence1: SENTENCE1 sentence2: SENTENCE2", "not_equivalent equivalent"),
        ("glue_qqp", "qqp question1: QUESTION1 question2: QUESTION2", "not_duplicate duplicate"),
        ("glue_mnli", "mnli hypothesis: HYPOTHESIS premise: PREMISE", "entailment neutral contradiction"),
        ("glue_qnli", "qnli question: QUESTION sentence: SENTENCE", "entailment not_entailment"),
        ("glue_rte", "rte sentence1: SENTENCE1 sentence2: SENTENCE2", "entailment not_entailment"),
        ("glue_wnli", "wnli sentence1: SENTENCE1 sentence2: SENTENCE2", "not_entailment entailment"),
        ("glue_ax", "mnli hypothesis: HYPOTHESIS premise: PREMISE", "entailment neutral contradiction"),
        ("super_glue_boolq", "boolq passage: PASSAGE question: QUESTION", "False True"),
        ("super_glue_cb", "cb hypothesis: HYPOTHESIS premise: PREMISE", "entailment contradiction neutral"),
        (
            "super_glue_copa",
            "copa choice1: CHOICE1 choice2: CHOICE2 premise: PREMISE question: QUESTION",
            "choice1 choice2",
        ),
        ("super_glue_rte", "rte hypothesis: HYPOTHESIS premise: PREMISE", "entailment not_entailment"),
        ("super_glue_axb", "rte hypothesis: SENTENCE2 premise: SENTENCE1", "entailment not_entailment"),
        ("super_glue_wic", "wic sentence1: SENTENCE1 sentence2: SENTENCE2 word: WORD", "False True"),
    ],
)
def test_sentences_and_classes(name, inputs, labels):
    columns = [column.lower() for column in re.findall(r"[A-Z]+\d?", inputs)]
    for number, label in enumerate(labels.split()):
        assert _one(name, {**_rows(*columns), "label": number}) == (inputs, label)
        assert DATASETS[name].format.prediction(label) == number
    assert _one(name, {**_rows(*columns), "label": -1}) == (inputs, "<unk>")
    assert DATASETS[name].format.prediction("banana") == -1
    with pytest.raises(ValueError, match=r"column 'label' has the label '7'; the known labels are '0', '1'"):
        _one(name, {**_rows(*columns), "label": 7})


def test_similarity_is_rounded_to_fifths():
    row = {"sentence1": "Three.", "sentence2": "One."}
    for value, text in ((1.8, "1.8"), (3.75, "3.8"), (5.0, "5.0"), (0.0, "0.0"), ("2.5", "2.4"), (-1, "<unk>")):
        assert _one("glue_stsb", {**row, "label": value}) == ("stsb sentence1: Three. sentence2: One.", text)
    predicted = [formats.Similarity().prediction(text) for text in ("3.4", "", "three", "nan")]
    assert predicted == [3.4, -1, -1, -1]
    with pytest.raises(ValueError, match="column 'label' has 'much', which is not a number"):
        _one("glue_stsb", {**row, "label": "much"})


def test_multirc_loses_markup_and_keeps_its_question():
    row = {"paragraph": "<b>Sent 1: </b>It rained.<br><b>Sent 2: </b>Ana slept.", "question": "Who?", "answer": "Ana"}
    (example,) = formats.MultiRc()({**row, "label": 1, "idx": '{"paragraph": 3, "question": 7, "answer": 9}'})
    assert example.inputs == "multirc question: Who? answer: Ana paragraph: Sent 1: It rained. Sent 2: Ana slept."
    assert (example.targets, example.correct) == ("True", (False, True))
    assert example.reference == {"value": 1, "group": 7}
    assert formats.MultiRc().prediction("False") == {"value": 0}


def test_record_has_an_example_for_each_answer():
    row = {
        "passage": "This is the passage.\n@highlight\nBirds\n@highlight\nand fish",
        "query": "A @placeholder is a bird.",
        "entities": ["penguin", "potato", "pigeon"],
        "answers": ["penguin", "pigeon"],
        "idx": {"passage": 1, "query": 2},
    }
    examples = formats.Record()(row)
    inputs = (
        "record query: A @placeholder is a bird. entities: penguin, potato, pigeon passage: This is the passage. "
        "Birds. and fish"
    )
    assert [(x.inputs, x.targets) for x in examples] == [(inputs, "penguin"), (inputs, "pigeon")]
    assert examples[0].correct == (True, False, True)
    assert examples[0].reference == {"value": ["penguin", "pigeon"], "group": "1/2"}
    assert [x.targets for x in formats.Record()({**row, "answers": []})] == ["<unk>"]


def test_winograd_marks_both_words():
    row = {
        "text": "This is a test sentence .",
        "span1_text": "test",
        "span1_index": 3,
        "span2_text": "This",
        "span2_index": 0,
        "label": 0,
    }
    assert _one("super_glue_wsc", row) == ("wsc text: # This # is a * test * sentence .", "False")
    later = {**row, "span1_text": "This", "span1_index": 0, "span2_text": "test", "span2_index": 3, "label": 1}
    assert _one("super_glue_wsc", later) == ("wsc text: * This * is a # test # sentence .", "True")


def test_squad_sets_punctuation_apart():
    row = {"context": "Ana (b. 1990) won.", "question": "Who won?", "answers": {"text": ["Ana", "Ana (b"]}}
    (example,) = formats.Squad()(row)
    assert example.inputs == "question: Who won ? context: Ana ( b . 1990 ) won . "
    assert (example.targets, example.reference) == ("Ana", ["Ana", "Ana ( b"])
    assert formats.Squad()({**row, "answers": {"text": []}})[0].reference == [""]
    assert formats.Squad("answer")({**row, "answer": "Ana"})[0].reference == ["Ana"]


def test_translations_and_summaries():
    row = {"translation": '{"en": "That is good.", "ro": "E bine."}'}
    assert _one("wmt16_enro", row) == ("translate English to Romanian: That is good.", "E bine.")
    assert _one("cnn_dailymail", {"article": "Long.", "highlights": "Short."}) == ("summarize: Long.", "Short.")
    with pytest.raises(ValueError, match=r"language 'tlh' is not known.*a column for each"):
        formats.Translation("en", "tlh")
    (example,) = formats.Translation("ro", "tlh", "to Klingon: ")({"translation": {"ro": "Da.", "tlh": "HIja'."}})
    assert (example.inputs, example.targets) == ("to Klingon: Da.", "HIja'.")
    with pytest.raises(ValueError, match=r"has no text for 'tlh', only \{'ro': 'Da\.'\}"):
        formats.Translation("ro", "tlh", "")({"translation": {"ro": "Da."}})


def test_missing_translations_and_answers_that_begin_as_json():
    translation = formats.Translation("en", "ro")
    (example,) = translation({"translation": {"en": "a", "ro": None}})
    assert (example.inputs, example.targets) == ("translate English to Romanian: a", "")
    with pytest.raises(ValueError, match="has no text for 'en'"):
        translation({"translation": None})
    with pytest.raises(ValueError, match="has no text for 'en', only en ro, cut"):
        translation({"translation": "en ro, cut"})
    row = {"question": "Cine?", "context": "Ana", "answers": '"Ana" da'}
    (example,) = formats.Squad()(row)
    assert example.targets == ' " Ana " da'
    (example,) = formats.Squad()({**row, "answers": None})
    assert (example.targets, example.reference) == ("", [""])


def test_templates():
    template = formats.Template("{{a}} {text}: {n}?", "label", ["yes", "no"])
    assert template.columns == ("text", "n", "label")
    (example,) = template({"text": "T", "n": 3.0, "label": "no"})
    assert (example.inputs, example.targets, example.correct) == ("{a} T: 3?", "no", (False, True))
    # What files have: numbers as texts, booleans, masked labels.
    assert formats.Template("{t}", "y", {True: "yes", False: "no"})({"t": "", "y": "True"})[0].targets == "yes"
    assert (
        formats.Template("{t}", "y", {1: "<extra_id_0> a", 2: "b"})({"t": "", "y": "1"})[0].targets == "<extra_id_0> a"
    )
    assert formats.Template("{t}", "y")({"t": "x", "y": None})[0].targets == ""
    with pytest.raises(ValueError, match="column 'y' has no label; the known labels are 'a', 'b'"):
        formats.Template("{t}", "y", ["a", "b"])({"t": "", "y": float("nan")})
    composed, decomposed = "\u0439", "\u0438\u0306"
    with pytest.raises(ValueError, match=r"has the label .*\. One looks the same and has other code points: .* NFC$"):
        formats.Template("{t}", "y", [composed, "b"])({"t": "", "y": decomposed})
    for inputs, message in (
        ("text", "no column"),
        ("{}", "name of a column only"),
        ("{", "not a template: a single '{'"),
        ("{sum}}", "not a template: a single '}'.*rename a column with a brace in its name"),
    ):
        with pytest.raises(ValueError, match=message):
            _ = formats.Template(inputs, "y").columns
    with pytest.raises(ValueError, match="at least two"):
        formats.Template("{t}", "y", ["a"])


def test_a_column_may_have_any_name_without_braces():
    row = {"text:full": "T", "a!b": 3, "x.y[0]": "z", "y": "ok"}
    template = formats.Template("{text:full} {{{a!b}}} {x.y[0]}", "y")
    assert template.columns == ("text:full", "a!b", "x.y[0]", "y")
    assert template(row)[0].inputs == "T {3} z"


def test_the_table_is_whole():
    assert len(GLUE) == 12 and len(SUPER_GLUE) == 10
    assert all(entry.hub and entry.splits for entry in DATASETS.values())
    trained = {name for name, entry in DATASETS.items() if "train" in entry.splits}
    assert trained == {name for name, entry in DATASETS.items() if entry.num_examples}
