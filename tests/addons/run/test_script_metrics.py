"""Metrics in the numbers of Hugging Face's scripts."""

import inspect

import pytest

from limba.addons.run import script_metrics, script_task
from limba.addons.run.keys.row_answers import ANSWERS
from tasks.metrics import text_metrics


def _measured(metric, answers, *given):
    return script_metrics.of_script(metric, answers)(*given)


def test_shares_are_from_0_to_1_and_what_scripts_have_in_percent_stays():
    assert _measured(text_metrics.accuracy, "text", ["a", "b", "c"], ["a", "b", "x"]) == pytest.approx(
        {"accuracy": 2 / 3}
    )
    answers = [["the cat"], ["red car"]]
    assert _measured(text_metrics.squad, "text", answers, ["Cat.", "red house"]) == {"exact_match": 50.0, "f1": 75.0}
    found = _measured(text_metrics.pearson_corrcoef, "number", [0.0, 1.0], [0.0, 2.0])
    assert found == pytest.approx({"pearson": 1.0})
    assert _measured(lambda targets, predictions: {"bleu": 20.0, "X_f1": 50.0}, "text", [], []) == {
        "bleu": 20.0,
        "X_f1": 0.5,
    }


def test_blanks_at_the_ends_of_a_text_are_no_difference():
    """A vocabulary has none for those of a csv, so no answer could ever be `tell `."""
    targets, predictions = ["tell ", "\task", "a b"], ["tell", "ask ", "a  b"]
    assert _measured(text_metrics.accuracy, "text", targets, predictions) == pytest.approx({"accuracy": 2 / 3})


def test_a_metric_keeps_its_signature_and_is_the_same_for_a_task_of_the_same_name():
    once, again = (script_metrics.of_script(text_metrics.squad, "text") for _ in range(2))
    assert once is again and inspect.signature(once) == inspect.signature(text_metrics.squad)
    of_words = script_task.word_dataset("tokens", "tags", ["O", "B-X"]).metrics
    assert of_words == script_task.word_dataset("tokens", "tags", ["O", "B-X"]).metrics
    of_labels = [script_task.row_dataset(None, "{text}", "label", ["a", "b"], None, None) for _ in range(2)]
    assert of_labels[0] == of_labels[1] and len(of_labels[0].metrics) == 3  # one of which is made for these labels
    assert of_words[0]([["O", "B-X"]], [["O", "O"]])["accuracy"] == 0.5


def test_the_names_are_those_of_the_keys():
    for kind, answers in ANSWERS.items():
        assert answers.names == script_metrics.names(kind)


def test_texts_are_measured_without_special_tokens():
    """As the scripts decode them: sentinels and the unknown token of an answer are no words of it."""
    right, written = ["a red car", "b"], ["a<extra_id_34> red car<extra_id_0>", "b \u2047 <unk>"]
    assert text_metrics.accuracy(right, written) == {"accuracy": 0.0}
    assert _measured(text_metrics.accuracy, "text", right, written) == {"accuracy": 1.0}
    named = script_metrics.of_script(text_metrics.bleu, "text")(
        targets=["a b c d"], predictions=["a b<extra_id_1> c d"]
    )
    assert named["bleu"] == pytest.approx(100.0)


def test_bleu_is_of_the_tokenizer_that_run_translation_leaves_to_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu", reason="sacrebleu is not installed (the extra `metrics`)")
    right, written = ["the cat’s mat is “red” today", "a b c d e"], [" the cat’s mat is “red” now\n", "a b c d e"]
    found, by_default = _measured(text_metrics.bleu, "text", right, written), {}
    for tokenize in ("13a", "intl"):
        stripped = [text.strip() for text in written]
        by_default[tokenize] = sacrebleu.corpus_bleu(stripped, [right], tokenize=tokenize).score
    assert sacrebleu.corpus_bleu([text.strip() for text in written], [right]).score == by_default["13a"]
    assert found["bleu"] == pytest.approx(by_default["13a"]) and by_default["13a"] < by_default["intl"] - 1
    assert text_metrics.bleu(right, written)["bleu"] == pytest.approx(by_default["intl"])  # T5's own stays.


def test_rouge_has_the_stemmer_and_the_sentences_of_run_summarization():
    scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="rouge-score is not installed (`metrics`)")
    right, written = "The programs were printing files. A cat sat!", 'A cat sits! "The program prints a file." Yes.'
    keys = ["rouge1", "rougeLsum"]
    split = "The programs were printing files.\nA cat sat!", 'A cat sits!\n"The program prints a file."\nYes.'
    expected = scorer.RougeScorer(keys, use_stemmer=True).score(*split)
    found = _measured(text_metrics.rouge, "text", [right], [written])
    assert [found[key] for key in keys] == pytest.approx([100 * expected[key].fmeasure for key in keys])
    assert found["rouge1"] == pytest.approx(100 * 2 * 6 / 17) and found["rougeLsum"] > found["rougeL"]
    # T5's own has no stems and one sentence: "the", "a" and "cat".
    assert text_metrics.rouge([right], [written])["rouge1"] == pytest.approx(100 * 2 * 3 / 17)
