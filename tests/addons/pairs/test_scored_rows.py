"""Rows that are scored: each token of a text belongs to one word, and each kind of score has its rows."""

import pytest

from limba.addons.pairs import scored_rows
from limba.addons.pairs.scored_rows import BlankRows, LeftToRightRows, MaskRows, word_groups
from limba.addons.pairs.token_spans import TokenSpans, encode
from tasks.objectives import VocabularyIds
from tasks.vocabularies import ByteVocabulary

# a bc, d: with "bc" in two pieces, and a blank before it that is a token.
TEXT = "a bc, d"
TOKENS = TokenSpans([10, 11, 12, 13, 14, 15], [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 7)])
IDS = VocabularyIds(100, 10, 1, cls_id=2, sep_id=3, mask_id=4)


@pytest.mark.parametrize(
    ("text", "spans", "expected"),
    [
        (TEXT, TOKENS.spans, [(0, 1), (1, 4), (4, 5), (5, 6)]),
        ("ab c ", [(0, 1), (1, 4), (4, 5)], [(0, 3)]),  # a token of two words, and a blank at the end
        ("a b c", [(0, 1), (1, 3), (3, 5)], [(0, 1), (1, 2), (2, 3)]),  # SentencePiece's: blanks before words
        ("aé b", [(0, 1), (1, 1), (1, 2), (2, 4)], [(0, 3), (3, 4)]),  # a piece without a character: bytes of one
        (" ", [(0, 1)], [(0, 1)]),
        ("", [], []),
    ],
)
def test_each_token_belongs_to_one_word(text, spans, expected):
    assert word_groups(text, TokenSpans([*range(len(spans))], spans)) == expected


def test_bytes_of_a_word_are_with_the_blank_before_it():
    (tokens,) = encode(ByteVocabulary(100), ["dé bé."])
    assert word_groups("dé bé.", tokens) == [(0, 3), (3, 7), (7, 8)]


def test_rows_of_an_encoder_decoder():
    maker = BlankRows(IDS, [50])
    found = [row[:2] + row[3:] for word in maker.by_word(TEXT, TOKENS) for row in word]
    assert found[1] == ([50, 10, 99, 14, 15, 1], [99, 11, 12, 13, 98], [0, 1, 1, 1, 1])
    assert found[3] == ([50, 10, 11, 12, 13, 14, 99, 1], [99, 15, 1], [0, 1, 1])  # EOS ends the text
    assert len(found) == 4
    assert [*maker.continuation(TOKENS, 4, True)] == [([50, 10, 11, 12, 13, 99, 1], [99, 14, 15, 1], [], [0, 1, 1, 1])]
    assert [*maker.continuation(TOKENS, 4, False)] == [([50, 10, 11, 12, 13, 99, 1], [99, 14, 15], [], [0, 1, 1])]


def test_rows_of_an_encoder():
    maker = MaskRows(IDS)
    whole = [row for word in maker.by_word(TEXT, TOKENS) for row in word]
    assert len(whole) == 6
    assert whole[2] == ([2, 10, 11, 4, 4, 14, 15, 3], [12], [3], [1])  # its word's next piece is masked, too
    assert whole[3] == ([2, 10, 11, 12, 4, 14, 15, 3], [13], [4], [1])
    assert [*maker.pieces(TOKENS)][2] == ([2, 10, 11, 4, 13, 14, 15, 3], [12], [3], [1])
    assert [*maker.continuation(TOKENS, 4, True)] == [
        ([2, 10, 11, 12, 13, 4, 4, 3], [14], [5], [1]),
        ([2, 10, 11, 12, 13, 14, 4, 3], [15], [6], [1]),
    ]


def test_rows_of_a_decoder():
    maker = LeftToRightRows(IDS)
    targets = [*TOKENS.ids, 1]
    assert [row for word in maker.by_word(TEXT, TOKENS) for row in word] == [([], targets, [], [1] * 7)]
    assert maker.words({"targets": targets}, TOKENS, [(2, 4)]) == [([], targets, [], [0, 0, 1, 1, 0, 0, 0])]
    assert [*maker.continuation(TOKENS, 4, True)] == [([], targets, [], [0, 0, 0, 0, 1, 1, 1])]
    assert [*maker.continuation(TOKENS, 4, False)] == [([], targets[:-1], [], [0, 0, 0, 0, 1, 1])]


def test_the_context_ends_before_a_word():
    assert [scored_rows.context_length(TOKENS, begin) for begin in (0, 2, 5, 6, 7)] == [0, 2, 5, 5, 6]


@pytest.mark.parametrize(
    ("kind", "form", "message"),
    [
        ("pieces", "FilledBlanks", "--score pieces is for encoders .* Take --score whole"),
        ("sum", "MaskedWords", "--score is 'sum'; it is one of words, whole, pieces, continuation"),
    ],
)
def test_kinds_that_a_model_does_not_have(kind, form, message):
    with pytest.raises(ValueError, match=message):
        scored_rows.check_kind(kind, form)
