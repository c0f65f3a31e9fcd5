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


def test_nothing_is_said_of_what_is_known(vocabulary):
    assert known_text.describe_inputs(vocabulary, ["a line", ""]) == ""
    assert known_text.describe_inputs(vocabulary, []) == ""
    assert known_text.describe_inputs(ByteVocabulary(), ["ԱԲԱ"]) == ""
