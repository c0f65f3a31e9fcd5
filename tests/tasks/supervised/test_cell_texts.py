import numpy as np
import pytest

from tasks.supervised import cell_texts


@pytest.mark.parametrize(
    ("text", "padded"),
    [
        ("Who  won, Ana (b. 1990)?", "Who won , Ana ( b . 1990 ) ? "),
        ("snake_case x=1", "snake_case x = 1"),
        ("Introducción «en vídeo»…", "Introducción « en vídeo » … "),
        ("Хто це — король?", "Хто це — король ? "),
        ("हिन्दी क्या है।", "हिन्दी क्या है । "),  # vowel signs, a virama
        ("می‌خواهم؟", "می‌خواهم ؟ "),  # a joiner within the word
        ("e\u0301te\u0301, 5 €", "e\u0301te\u0301 , 5 € "),  # accents of their own
    ],
)
def test_punctuation_is_set_apart_in_all_scripts(text, padded):
    assert cell_texts.pad_punctuation(text) == padded


def test_values_as_texts():
    values = [None, np.nan, 3.0, np.float32(2.5), 7, "a"]
    assert [cell_texts.as_text(value) for value in values] == ["", "", "3", "2.5", "7", "a"]
    assert cell_texts.plain_text(" a \n b\t") == "a b"
