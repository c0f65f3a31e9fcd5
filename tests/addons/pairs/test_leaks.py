"""Texts of an evaluation in a training corpus: by sets of words in a row, and by cases."""

import numpy as np
import pytest

from limba.addons.pairs.scoreboard import leaks

WORDS = [f"w{i}" for i in range(20)]


def _found(texts, documents):
    finder = leaks.LeakFinder(texts)
    for document in documents:  # in several parts, as a corpus is read
        finder.read([document])
    return finder.result()


@pytest.mark.parametrize(
    ("text", "documents", "in_a_row", "whole"),
    [
        (WORDS[:13], [WORDS], True, False),
        ([*WORDS[:12], "other", *WORDS[13:]], [WORDS], False, False),  # twelve words in a row
        (WORDS[:6], [WORDS], True, False),  # all words of a short text
        (WORDS[:4], [WORDS], False, False),  # too short for that
        (WORDS[:4], [["x"], WORDS[:4]], False, True),
        (WORDS[:13], [WORDS[:7], WORDS[7:]], False, False),  # of two documents
        (WORDS[:13], ["\n".join(WORDS)], True, False),  # over lines of one
        (["Is", "it", "so?", "It", "is."], ["is — it so it IS"], True, True),
        (["你好世界"], ["他说你好世界"], False, False),
        (["你好世界吗"], ["他说你好世界吗"], True, False),
        (["!"], ["", "!"], False, False),
    ],
)
def test_cases(text, documents, in_a_row, whole):
    found = _found([" ".join(text)], [x if isinstance(x, str) else " ".join(x) for x in documents])
    assert (found.in_a_row[0], found.whole[0]) == (in_a_row, whole)


def test_every_row_of_words_is_found(monkeypatch):
    """Beside sets of tuples, over borders of what is looked through at a time."""
    monkeypatch.setattr(leaks, "_WORDS_AT_ONCE", 50)
    rng = np.random.default_rng(0)
    documents = [[f"{i}" for i in rng.integers(0, 2, rng.integers(0, 40))] for _ in range(60)]
    texts = [[f"{i}" for i in rng.integers(0, 2, rng.integers(3, 30))] for _ in range(200)]

    def rows(words, length):
        return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}

    lengths = [min(13, len(text)) for text in texts]
    expected = [
        length >= 5 and any(rows(text, length) & rows(document, length) for document in documents)
        for text, length in zip(texts, lengths, strict=True)
    ]
    found = _found([" ".join(text) for text in texts], [" ".join(document) for document in documents])
    assert found.in_a_row.tolist() == expected and 20 < sum(expected) < 180
    assert found.is_short.tolist() == [len(text) < 5 for text in texts]
    pairs = found.by(2)
    assert pairs.touched.tolist() == [any(x) for x in zip(found.touched[::2], found.touched[1::2], strict=True)]
