import pytest

from tasks.vocabularies import ByteVocabulary, SentencePieceVocabulary, known_text
from tests.convert import vocabularies


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    file = vocabularies.train(tmp_path_factory.mktemp("vocabulary") / "spiece.model")
    return SentencePieceVocabulary(str(file), extra_ids=100)


def test_inputs_with_unknown_characters_are_counted_with_examples(vocabulary):
    texts = ["a line", "ԱԲԱ the line", "Ա", "another"]
    assert known_text.describe_inputs(vocabulary, texts) == (
        "2 of 4 inputs have characters that the vocabulary does not know ('Ա' 3 times, 'Բ' 1 time); the model reads "
        "each as unknown."
    )
    many = known_text.describe_inputs(vocabulary, ["ԱԲԳԴԵԶԷ"])
    assert many.count(" 1 time") == 5 and "'Ե' 1 time …" in many


def test_control_characters_are_unknown_characters_too(vocabulary):
    """And a line break between two texts is of none of them."""
    assert known_text.describe_inputs(vocabulary, ["a\x80 line", "one\nline"]).startswith(
        r"1 of 2 inputs have characters that the vocabulary does not know ('\x80' 1 time); "
    )
    texts = [("a", "f, row 0"), ("b", "f, row 1"), ("c\nd\ue000", "f, row 2")]
    characters = known_text.measure(vocabulary, texts).characters
    assert characters.other_counts == {"\n": 1, "\ue000": 1}
    assert characters.example("\n") == r"f, row 2: 'c d\ue000'"


def test_nothing_is_said_of_what_is_known(vocabulary):
    assert known_text.describe_inputs(vocabulary, ["a line", ""]) == ""
    assert known_text.describe_inputs(vocabulary, []) == ""
    assert known_text.describe_inputs(ByteVocabulary(), ["ԱԲԱ"]) == ""
