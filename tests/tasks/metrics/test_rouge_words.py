"""ROUGE of texts in other alphabets than the Latin one."""

import logging

import pytest

from tasks.metrics import rouge_words, text_metrics


@pytest.fixture
def _rouge_score():
    pytest.importorskip("rouge_score", reason="rouge-score is not installed (the extra `metrics`)")


@pytest.mark.usefixtures("_rouge_score")
def test_rouge_of_other_alphabets_is_not_zero():
    scores = text_metrics.rouge(["Кіт радіє удома"], ["Кіт радіє удома"])
    assert scores == {"rouge1": 100, "rouge2": 100, "rougeL": 100, "rougeLsum": 100}
    scores = text_metrics.rouge(["кіт радіє удома"], ["Кіт удома."])
    assert scores["rouge1"] == pytest.approx(80)  # precision 1, recall 2/3
    assert scores["rouge2"] == 0
    assert text_metrics.rouge(["小猫在家里"], ["小狗在家"])["rouge1"] == pytest.approx(100 * 2 * 3 / 9)


@pytest.mark.usefixtures("_rouge_score")
def test_rouge_of_latin_letters_is_t5x_s():
    # rouge-score's own tokenizer makes "caf" of "café": T5X's number for French is 100 here, and it stays.
    assert text_metrics.rouge(["le café noir"], ["le caf noir"])["rouge1"] == 100
    assert text_metrics.rouge(["the cat кіт"], ["the cat"])["rouge1"] == 100
    assert rouge_words.tokenizer_for(["tiếng Việt", "déjà"]) is None
    assert rouge_words.tokenizer_for(["1 2 3", ""]) is None
    assert rouge_words.tokenizer_for(["in 1999", "у домі є кіт"]) is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("П'ять котів_і GPT-4!", ["п", "ять", "котів", "і", "gpt", "4"]),
        ("и\u0306", ["й"]),  # the letter apart from its accent
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),  # with vowel signs and a virama
        ("한국어 문장", ["한국어", "문장"]),
        ("我用GPT4写。", ["我", "用", "gpt4", "写"]),
        ("ที่บ้าน", ["ที่", "บ้", "า", "น"]),
    ],
)
def test_words_of_any_alphabet(text: str, words: list[str]):
    assert rouge_words.UnicodeWords().tokenize(text) == words


def test_other_words_are_logged_once(caplog: pytest.LogCaptureFixture):
    rouge_words._log_once.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            rouge_words.tokenizer_for(["Кіт радіє"])
    assert [message.partition(",")[0] for message in caplog.messages] == [
        "Most letters of the references are not Latin"
    ]


def test_latin_letters_that_are_dropped_are_said(caplog: pytest.LogCaptureFixture):
    """Vietnamese words that differ in their tones alone are the same for rouge-score."""
    rouge_words._log_once.cache_clear()
    texts = ["là lá lạ lả lã"], ["lá là lả lã lạ"]
    text_metrics.rouge(["a house of the naïve people, and all of the other words of a text in English"], ["a"])
    assert not caplog.messages and text_metrics.rouge(*texts)["rougeLsum"] == 100
    assert "ROUGE takes letters beyond a-z for blanks" in caplog.text
    assert text_metrics.rouge(*texts, tokenizer=rouge_words.UnicodeWords())["rougeLsum"] == pytest.approx(60)


def test_bleu_of_texts_without_blanks_is_said(caplog: pytest.LogCaptureFixture):
    rouge_words._log_once.cache_clear()
    texts = ["今天天气很好，我们去北京吧。"], ["今天天气很好，我们去上海吧。"]
    assert text_metrics.bleu(["добрий день, світе мій"], ["добрий день, світе мій"])["bleu"] == pytest.approx(100)
    assert text_metrics.bleu(*texts, tokenizer="zh")["bleu"] > 60 and not caplog.messages
    assert text_metrics.bleu(*texts, tokenizer="13a")["bleu"] == 0
    assert "BLEU's tokenizer '13a' splits: the score" in caplog.text
