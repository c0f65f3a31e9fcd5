"""Which words of two sentences differ, and the tokens that both have."""

import pytest

from limba.addons.pairs import differing_words, pair_formats, token_spans
from tasks.vocabularies import ByteVocabulary, SentencePieceVocabulary, TokenizerVocabulary, sentencepiece_models
from tests.convert import vocabularies


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("The dogs bark.", "The dogs barks.", [("bark", "barks")]),
        ("Who did you see?", "Whom did you sees?", [("Who", "Whom"), ("see", "sees")]),
        ("the dogs bark loud", "the dog barks loud", [("dogs bark", "dog barks")]),  # beside each other: one blank
        ("l'homme doesn't see", "l'homme don't see", [("doesn't", "don't")]),
        ("mother-in-law goes", "mother-in-laws goes", [("mother-in-law", "mother-in-laws")]),
        ("(bark)", "(barks)", [("bark", "barks")]),
        ("a very big dog.", "a big dog.", [("very big", "big")]),  # with the word behind it
        ("a dog is big", "a dog is", [("is big", "is")]),  # with the word before it
        ("a, b", "a b", [(", b", "b")]),
        ("我喜欢狗。", "我喜爱狗。", [("欢", "爱")]),  # a script without blanks
        ("a  b", " a b ", []),
    ],
)
def test_differing_words(right, wrong, expected):
    found = differing_words.differences(right, wrong)
    assert [(right[a:b], wrong[c:d]) for (a, b), (c, d) in found] == expected
    turned = differing_words.differences(wrong, right)
    assert [(right[a:b], wrong[c:d]) for (c, d), (a, b) in turned] == expected


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    text = [f"The dogs bark and the dog barks . „bark“? He runs, they run {i}" for i in range(99)]
    file = vocabularies.train(tmp_path_factory.mktemp("v") / "s.model", text, vocab_size=60, hard_vocab_limit=False)
    return SentencePieceVocabulary(str(file), 100)


def _pair(vocabulary, right, wrong):
    tokens = token_spans.encode(vocabulary, [right, wrong])
    return pair_formats.Sentences(right, wrong, (tokens[0], tokens[1]))


@pytest.mark.parametrize("text", ["The dogs bark.", "„bark“? ﬁn 字 x", "é e\u0301 ", ""])
@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "tokenizer"])
def test_tokens_are_those_of_the_vocabulary_and_their_places_are_in_order(kind, text, sentencepiece, tmp_path):
    file = vocabularies.write_words(tmp_path / "tokenizer.json", ["The", "dogs", "bark", ".", "x"])
    opened = {
        "bytes": ByteVocabulary(100),
        "sentencepiece": sentencepiece,
        "tokenizer": TokenizerVocabulary(str(file)),
    }[kind]
    (found,) = token_spans.encode(opened, [text])
    assert list(found.ids) == list(opened.encode(text)) and len(found.spans) == len(found.ids)
    assert found.spans == sorted(found.spans) and all(0 <= a <= b <= len(text) for a, b in found.spans)
    if text.startswith("The"):
        assert "".join(text[a:b] for a, b in found.spans).replace(" ", "") == "Thedogsbark."


def test_the_form_of_span_corruption(sentencepiece):
    ids = sentencepiece_models.ids_of(sentencepiece)
    show = lambda tokens: " ".join(map(sentencepiece.tokenizer.id_to_piece, tokens)).replace("▁<", "<")  # noqa: E731
    pair = _pair(sentencepiece, "the dogs bark.", "the dog bark.")
    right, wrong = pair_formats.FilledBlanks()(pair, ids, sentencepiece.encode("He"))
    assert right["inputs"] == wrong["inputs"]
    assert sentencepiece.decode(right["inputs"][:1]) in "He" and show(right["inputs"]).endswith(". </s>")
    assert show(right["targets"]) == "<extra_id_0> ▁dog s <extra_id_1>"
    assert show(wrong["targets"]) == "<extra_id_0> ▁dog <extra_id_1>"
    # The whole of what both have, and one sentinel.
    begin, _, end = show(right["inputs"]).partition(" <extra_id_0> ")
    assert begin.endswith("▁the") and end.replace(" ", "") == "▁bark.</s>"
    at_the_end, _ = pair_formats.FilledBlanks()(_pair(sentencepiece, "the dog barks", "the dog bark"), ids, [])
    assert show(at_the_end["targets"]) == "<extra_id_0> ▁bark s </s>"
    assert show(at_the_end["inputs"]).endswith("<extra_id_0> </s>")


def test_what_only_one_sentence_has_between_two_blanks_makes_them_one():
    """Tokens of the kept text may depend on the words beside it."""
    right = token_spans.TokenSpans([5, 6, 7, 8], [(0, 1), (1, 3), (3, 5), (5, 7)])
    wrong = token_spans.TokenSpans([5, 9, 10, 8], [(0, 1), (1, 4), (4, 5), (5, 7)])
    found = differing_words.split("a b c d", "a x c y", (right, wrong))
    assert found == differing_words.Blanks([[5], []], ([[6, 7, 8]], [[9, 10, 8]]))


def test_more_blanks_than_sentinels():
    few = ByteVocabulary(2)
    with pytest.raises(ValueError, match="differ in 2 places, which takes 3 sentinels, and the vocabulary has 2"):
        pair_formats.FilledBlanks()(_pair(few, "a b c", "x b y"), sentencepiece_models.ids_of(few), [])


def test_words_without_a_token_are_refused():
    tokens = token_spans.TokenSpans([5], [(0, 1)])
    with pytest.raises(ValueError, match="no token for a word in which 'a b' and 'a c' differ"):
        differing_words.split("a b", "a c", (tokens, tokens))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("to the", "rain.", " "),
        ("Why?", "so", " "),
        ("to the ", "rain", ""),
        ("the", " rain", ""),
        ("", "a", ""),
        ("我们", "去", ""),
    ],
)
def test_a_blank_between_two_texts(before, after, expected):
    assert differing_words.blank_between(before, after) == expected
