"""What `benchmarks/encoder_vocabularies.py` counts."""

from benchmarks import encoder_vocabularies
from tests.convert import vocabularies


def test_tokens_of_texts(tmp_path):
    file = vocabularies.write_words(tmp_path / "tokenizer.json", ["ba", "ce"])
    used = encoder_vocabularies.usage(file, ["ba ce", "ba zo ba"])
    assert (used.lines, used.tokens, used.unknown) == (2, 5, 1)
    assert used.counts.tolist() == [0, 1, 0, 0, 0, 3, 1]
