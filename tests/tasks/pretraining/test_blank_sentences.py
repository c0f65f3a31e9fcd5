import json
import time

import pytest

from tasks import pretraining, registry
from tasks.pretraining import blank_sentences
from tasks.pretraining.blank_sentences import BLANK
from tasks.vocabularies import ByteVocabulary


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The longest word of the middle, in the first sentence of 6 to 25 words.
        ("Too short. The old cat sleeps under a tree.", (f"The old cat {BLANK} under a tree.", "sleeps")),
        ("În grădină trandafirii înfloresc numai vara.", (f"În grădină {BLANK} înfloresc numai vara.", "trandafirii")),
        # Another line is another sentence, and a number is not a word.
        ("1 2 3 4 5 6 7 8\nThere are 12 months in one year.", (f"There are 12 {BLANK} in one year.", "months")),
        ("これは日本語の文章であり、空白がありません。", (f"これは日本語の文章であり、{BLANK}がありません。", "空白")),
        # Languages with spaces, in whatever script, are never cut inside a word.
        ("ლათიღმა ყოლორი ვაკუჯზე გივდა.", None),
        ("Дети читают интересную книгу.", None),
        ("아이들이 재미있는 책을 읽고 있습니다.", None),
        ("ผมชอบอ่านหนังสือภาษาไทยทุกวัน", ("ผมชอบอ่านหนังสื<extra_id_0>าษาไทยทุกวัน", "อภ")),
        # Vowel signs, joiners and the full stops of other scripts.
        ("यह है। वह हमारे बड़े विद्यालय में रोज़ पढ़ता है।", (f"वह हमारे बड़े {BLANK} में रोज़ पढ़ता है।", "विद्यालय")),
        ("من فردا به می‌خواهم خانه بروم.", (f"من فردا به {BLANK} خانه بروم.", "می‌خواهم")),
        ("ภาษาไทยเป็นภาษาที่สวยงามมาก และมีคนพูดมาก", (f"ภาษาไทยเป็นภาษาที่สว{BLANK}ามมาก และมีคนพูดมาก", "ยง")),
        # U+200B and spaces of other kinds stand between words, and stay. Marks without a shape stand in a sentence.
        (
            "ប្រើ\u200bប៊ូតុង\u200bនេះ\u200bដើម្បី\u200bបើក\u200bឯកសារ\xa0។",
            (f"ប្រើ\u200b{BLANK}\u200bនេះ\u200bដើម្បី\u200bបើក\u200bឯកសារ\xa0។", "ប៊ូតុង"),
        ),
        ("ប្រើ\u200bប៊ូតុង\u200bនេះ\u200bដើម្បី\u200bបើកឯកសារ", None),
        ("Le\xa0vieux chat  dort sous\u3000un arbre.", (f"Le\xa0{BLANK} chat  dort sous\u3000un arbre.", "vieux")),
        ("The \u200eold cat sleeps un\xadder a tree.", (f"The \u200eold cat {BLANK} un\xadder a tree.", "sleeps")),
        ("The old \x07 cat sleeps under a tree.", None),
        # Full stops of Amharic, Armenian and Khmer paragraphs.
        ("ቤት ነው። አዲስ አበባ የኢትዮጵያ ዋና ከተማ ናት።", (f"አዲስ አበባ {BLANK} ዋና ከተማ ናት።", "የኢትዮጵያ")),
        ("Ոչ։ Այս մեծ կատուն քնում է ծառի տակ։", (f"Այս մեծ {BLANK} քնում է ծառի տակ։", "կատուն")),
        ("Short text.", None),
        ("a_b " * 30, None),
        (f"The old cat {BLANK} under a tree.", None),
    ],
)
def test_the_word_that_is_left_out(text, expected):
    assert blank_sentences.with_blank(text) == expected


def test_sentences_of_a_task(tmp_path, caplog):
    """One of each document that has one, in the order of the files; a task of answers has none."""
    texts = [
        "Too short.",
        "The old cat sleeps under a tree. The new cat sleeps under a tree.",
        "A dog never barks at night.",
    ]
    (tmp_path / "v.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    vocabulary = ByteVocabulary(extra_ids=100)
    task = pretraining.register_pretraining_task(
        "blank_sentences", data_files={"validation": str(tmp_path / "v.jsonl")}, vocabulary=vocabulary
    )
    cat, dog = (f"The old cat {BLANK} under a tree.", "sleeps"), (f"A dog {BLANK} barks at night.", "never")
    assert blank_sentences.of_task(task.name, None, "validation", 2) == [cat, dog]
    assert blank_sentences.of_task(task.name, None, "validation", 1) == [cat]
    assert not caplog.records
    assert blank_sentences.of_task(task.name, None, "validation", 5) == [cat, dog]
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("2 of 5 sentences are there: of the ") and "'validation' of task 'blank_sentences'" in said
    with pytest.raises(ValueError, match=r"'blank_sentences' has no sentences of 6 to 25 words .*'train'"):
        blank_sentences.of_task(task.name, None, "train", 1)
    registry.TaskRegistry.remove(task.name)


def test_many_spaces_take_no_minutes():
    text = "The house" + " " * 100_000 + "\n is old."
    begun = time.process_time()
    assert blank_sentences.sentences(f"{text} {text[:-8]}") == ["The house", "is old.", "The house"]
    assert time.process_time() - begun < 5
