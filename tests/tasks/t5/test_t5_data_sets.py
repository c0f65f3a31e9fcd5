"""T5's texts of its supervised data sets: the examples are those of T5's own documentation, and rarer ones."""

import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from tasks.t5 import glue_utils, qa_utils, t5_data_sets, t5_postprocessors

_IDX = {"idx": 10}


def _made(function, *rows, **arguments):
    """What a preprocessor makes of rows with texts, numbers and lists of texts."""

    def spec(value):
        if isinstance(value, dict):
            return {key: spec(x) for key, x in value.items()}
        dtype = {str: tf.string, int: tf.int64, float: tf.float32, list: tf.string}[type(value)]
        return tf.TensorSpec([None] if isinstance(value, list) else [], dtype)

    dataset = tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=spec(rows[0]))
    return [_plain(example) for example in function(dataset, **arguments).as_numpy_iterator()]


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(x) for key, x in value.items()}
    if isinstance(value, np.ndarray):
        return [_plain(x) for x in value.tolist()]
    return value.decode() if isinstance(value, bytes) else value.item() if isinstance(value, np.generic) else value


def test_translations():
    row = {"de": "Das ist gut.", "en": "That is good."}
    (made,) = _made(t5_data_sets.translate, row, source_language="de", target_language="en")
    assert made == {"inputs": "translate German to English: Das ist gut.", "targets": "That is good."}
    many = [
        {"translations": {"language": ["de", "fr", "en"], "translation": ["Gut.", "Bon.", "Good."]}},
        {"translations": {"language": ["de", "fr"], "translation": ["Gut.", "Bon."]}},
        {"translations": {"language": ["en", "de"], "translation": ["Bad.", "Schlecht."]}},
    ]
    made = _made(t5_data_sets.multi_translate, *many, source_language="en", target_language="de")
    assert [(x["inputs"], x["targets"]) for x in made] == [
        ("translate English to German: Good.", "Gut."),
        ("translate English to German: Bad.", "Schlecht."),
    ]


def test_names_of_other_languages_are_those_of_babel(monkeypatch, caplog):
    def locale(code):
        if code == "xx":
            raise ValueError("unknown")
        return types.SimpleNamespace(english_name={"uk": "Ukrainian", "zh": "Chinese"}.get(code))

    monkeypatch.setitem(sys.modules, "babel", types.SimpleNamespace(Locale=locale))
    (made,) = _made(t5_data_sets.translate, {"uk": "Так.", "ro": "Da."}, source_language="uk", target_language="ro")
    assert made["inputs"] == "translate Ukrainian to Romanian: Так."
    (made,) = _made(t5_data_sets.translate, {"zh-cn": "是", "en": "Yes"}, source_language="zh-cn", target_language="en")
    assert made["inputs"] == "translate Chinese to English: 是" and "zh-cn is that of zh" in caplog.text
    with pytest.raises(ValueError, match=r"no language 'xx': give a code of two letters"):
        _made(t5_data_sets.translate, {"xx": "a", "en": "b"}, source_language="xx", target_language="en")
    with pytest.raises(ValueError, match=r"English name of the language 'yy' is not known"):
        _made(t5_data_sets.translate, {"yy": "a", "en": "b"}, source_language="yy", target_language="en")
    monkeypatch.setitem(sys.modules, "babel", None)
    with pytest.raises(ModuleNotFoundError, match=r"of de, en, fr, ro are known here, that of 'uk' to babel: pip inst"):
        _made(t5_data_sets.translate, {"uk": "a", "en": "b"}, source_language="uk", target_language="en")


def test_squad():
    row = {"id": "1", "question": "Хто  це?", "context": "Ana (b. 1990)\nwon.", "answers": {"text": ["Ana.", "Ана"]}}
    (made,) = _made(t5_data_sets.squad, row)
    assert made == {
        "inputs": "question: Хто це ? context: Ana ( b . 1990 ) won . ",
        "targets": "Ana . ",
        "id": "1",
        "question": "Хто це ? ",
        "context": "Ana ( b . 1990 ) won . ",
        "answers": ["Ana . ", "Ана"],
    }
    (made,) = _made(t5_data_sets.squad, row, include_context=False)
    assert made["inputs"] == "squad trivia question: Хто це ? "


def test_record_has_an_example_for_each_answer():
    first = {
        "passage": "One.\n@highlight\nTwo\n@highlight\nThree",
        "query": "A @placeholder is a bird.",
        "entities": ["penguin", "potato"],
        "answers": ["penguin", "pigeon"],
        "idx": {"passage": 1, "query": 2},
    }
    made = _made(t5_data_sets.record, first, {**first, "answers": []})
    inputs = "record query: A @placeholder is a bird. entities: penguin, potato passage: One. Two. Three"
    assert {x["inputs"] for x in made} == {inputs}
    assert [x["targets"] for x in made] == ["penguin", "pigeon", "<unk>"]
    assert made[1]["answers"] == ["penguin", "pigeon"] and (made[1]["idx/passage"], made[1]["idx/query"]) == (1, 2)


def test_glue():
    qqp = {"question2": "Why you?", "question1": "Why me?", "label": 1, **_IDX}
    names = ["not_duplicate", "duplicate"]
    made = _made(t5_data_sets.glue, qqp, {**qqp, "label": -1}, benchmark_name="qqp", label_names=names)
    text = "qqp question1: Why me? question2: Why you?"
    assert made == [{"inputs": text, "targets": t, "idx": 10} for t in ("duplicate", "<unk>")]
    in_order = {"feature_names": ("question2",), "id_key": None}
    (made,) = _made(t5_data_sets.glue, qqp, benchmark_name="q", label_names=names, **in_order)
    assert made == {"inputs": "q question2: Why you?", "targets": "duplicate"}


def test_similarities_are_rounded_to_fifths():
    rows = [{"sentence1": "A b", "sentence2": "C", "label": x, **_IDX} for x in (0.0, 1.75, 1.8, 3.37, 4.99)]
    made = _made(t5_data_sets.stsb, *rows)
    assert [x["targets"] for x in made] == ["0.0", "1.8", "1.8", "3.4", "5.0"]
    assert made[0]["inputs"] == "stsb sentence1: A b sentence2: C"


def _wsc(text, noun, noun_index, pronoun, pronoun_index, label):
    spans = {"span1_text": noun, "span1_index": noun_index, "span2_text": pronoun, "span2_index": pronoun_index}
    return {"text": text, **spans, "label": label, **_IDX}


def test_pronouns_are_marked():
    made = _made(
        t5_data_sets.wsc,
        _wsc("This is a test sentence .", "test", 3, "This", 0, 0),
        _wsc("He saw Mr. Taylor when he left.", "Mr. Taylor", 2, "he", 5, 1),
        _wsc("The (old) man said he is", "(old) man", 1, "he", 4, -1),
        _wsc("No such noun is here", "noun", 1, "here", 4, 0),
    )
    assert [(x["inputs"], x["targets"]) for x in made] == [
        ("wsc text: # This # is a * test * sentence .", "False"),
        ("wsc text: He saw * Mr. Taylor * when # he # left.", "True"),
        ("wsc text: The * (old) man * said # he # is", "<unk>"),
        ("wsc text: No such noun is here", "False"),
    ]


def test_pronouns_as_questions():
    rows = [
        _wsc("Mitchell asked Tom if he could lend some money.", "Tom", 2, "he", 4, 1),
        _wsc('Tom laughed. "Good for him," he said. ', "Tom", 0, "him", 4, 0),  # as in one text of SuperGLUE
        _wsc("They might want to use it , but not now", "Tom", 0, "it", 4, 1),  # as in another one
        _wsc("Its it is here", "Tom", 0, "it", 0, 1),
    ]
    made = _made(t5_data_sets.wsc_simple, *rows)
    assert [x["inputs"] for x in made] == [
        "wsc: Mitchell asked Tom if *he* could lend some money.",
        'wsc: Tom laughed. "Good for *him* ," he said.',
        "wsc: They might want to use *it* , but not now",
        "wsc: Its *it* is here",
    ]
    assert [(x["targets"], x["label"]) for x in made] == [("Tom", 1), ("Tom", 0), ("Tom", 1), ("Tom", 1)]
    right = _made(t5_data_sets.wsc_simple, *rows, correct_referent_only=True, label="who:")
    assert [x["inputs"][:5] for x in right] == ["who: "] * 3
    with pytest.raises(tf.errors.InvalidArgumentError, match="has no pronoun b'she' from word 1 on"):
        _made(t5_data_sets.wsc_simple, _wsc("Ana said so", "Ana", 0, "she", 1, 1))
    dpr = {"sentence": "Bob asked Tom if he can, he said.", "pronoun": "he", "candidates": ["Bob", "Tom"], "label": 1}
    (made,) = _made(t5_data_sets.definite_pronoun_resolution_simple, dpr)
    assert made == {"inputs": "wsc: Bob asked Tom if *he* can, he said.", "targets": "Tom"}


# ---------------------------------------------------- builders of TFDS -----------------------------------------------


def _builder(name, *labels):
    return types.SimpleNamespace(name=name, label_classes=list(labels))


def test_what_reads_the_benchmarks():
    wic = {"sentence1": "A", "sentence2": "B", "word": "w", "start1": 1, "label": 1, **_IDX}
    read = glue_utils.get_glue_text_preprocessor(_builder("wic", "False", "True"))
    assert _made(read, wic)[0]["inputs"] == "wic sentence1: A sentence2: B word: w"
    ax = {"premise": "P", "hypothesis": "H", "label": 2, **_IDX}
    read = glue_utils.get_glue_text_preprocessor(_builder("ax", "entailment", "neutral", "contradiction"))
    assert _made(read, ax) == [{"inputs": "mnli hypothesis: H premise: P", "targets": "contradiction", "idx": 10}]
    multirc = {
        "paragraph": "<b>Sent 1: </b>Hi.<br>There.",
        "question": "Who?",
        "answer": "I",
        "label": 0,
        "idx": {"paragraph": 1, "question": 2, "answer": 3},
    }
    read = glue_utils.get_glue_text_preprocessor(_builder("multirc", "False", "True"))
    (made,) = _made(read, multirc)
    assert made["inputs"] == "multirc question: Who? answer: I paragraph: Sent 1: Hi. There."
    assert made["targets"] == "False" and made["idx/question"] == 2
    special = {"stsb": t5_data_sets.stsb, "wsc.fixed": t5_data_sets.wsc, "record": t5_data_sets.record}
    assert all(glue_utils.get_glue_text_preprocessor(_builder(name)) is function for name, function in special.items())


def test_what_measures_the_benchmarks():
    post = glue_utils.get_glue_postprocess_fn(_builder("qqp", "no", "yes"))
    assert [post("yes"), post("maybe"), glue_utils.get_glue_postprocess_fn(_builder("stsb"))("3.4")] == [1, -1, 3.4]
    (cola,) = glue_utils.get_glue_metric("cola")
    assert cola([1, 0, 1, 0], [1, 0, 1, 0])["matthews_corrcoef"] == 100
    f1, accuracy = glue_utils.get_super_glue_metric("cb")
    assert accuracy([0, 1, 2], [0, 1, 1])["accuracy"] == pytest.approx(200 / 3)
    assert list(f1([0, 1, 2], [0, 1, 2]).values()) == [100]
    example = {"idx/question": 4, "idx/passage": np.int32(1), "idx/query": np.int32(2), "answers": [b"a", b"b"]}
    multirc, record = (glue_utils.get_glue_postprocess_fn(_builder(name)) for name in ("multirc", "record"))
    assert (multirc("True", example, True), multirc("x")) == ({"value": 1, "group": 4}, {"value": -1})
    assert (record("a", example, True), record("z")) == ({"value": ["a", "b"], "group": (1, 2)}, {"value": "z"})
    assert sum(glue_utils.get_glue_weight_mapping().values()) == 949_101
    assert sum(glue_utils.get_super_glue_weight_mapping().values()) == 185_673
    assert qa_utils.qa_metrics([["a b", "c"], ["d"]], ["a", "D"]) == {"em": 0.0, "f1": pytest.approx(100 / 3)}


@pytest.mark.parametrize(
    ("prediction", "noun", "value"),
    [
        *[("tom", "Tom", 1), ("the Tom", "Tom", 1), ("bunny", "the fuzzy bunny", 1), ("fuzzy bunny", "bunny", 1)],
        *[("Bob", "Bob's hat", 0), ("cat dog", "dog mouse", 0), ("", "Tom", -1), ("the", "Tom", -1)],
    ],
)
def test_a_noun_is_right_also_with_more_words(prediction, noun, value):
    example = {"targets_pretokenized": noun.encode(), "label": 1}
    assert t5_postprocessors.wsc_simple(prediction, example) == value
    assert t5_postprocessors.wsc_simple(noun, example, is_target=True) == 1
