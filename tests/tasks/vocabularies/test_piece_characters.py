"""Characters of pieces add up to those of the text, for each kind of vocabulary."""

import json

import numpy as np
import pytest
import tokenizers

from tasks.sources import corpora
from tasks.vocabularies import (
    ByteVocabulary,
    LabelVocabulary,
    T5TokenizerVocabulary,
    TokenizerVocabulary,
    piece_characters,
    sentencepiece_models,
    sentencepiece_training,
)

TEXT = "déjà vu, 東京"


def _sum(vocabulary, text=TEXT):
    return piece_characters.of_vocabulary(vocabulary)[vocabulary.encode(text)].sum()


def test_bytes():
    assert _sum(ByteVocabulary(extra_ids=10)) == len(TEXT)
    assert piece_characters.of_vocabulary(ByteVocabulary(extra_ids=10)).shape == (269,)


def test_sentence_pieces(tmp_path):
    rng = np.random.default_rng(0)
    corpus = [" ".join("".join(rng.choice(list("abdéjàvu京東"), 4)) for _ in range(9)) for _ in range(300)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in [TEXT, *corpus]))
    source = corpora.HuggingFaceSource({"train": str(tmp_path / "corpus.jsonl")})
    sentencepiece_training.train_vocabulary(source, str(tmp_path / "spiece.model"), vocab_size=512, byte_fallback=True)
    vocabulary = sentencepiece_models.open_vocabulary(str(tmp_path / "spiece.model"))
    # The blank before a text is a piece's, and a character that no piece has is one byte that begins it.
    assert _sum(vocabulary) == len(f" {TEXT}") and _sum(vocabulary, "ñ") == len(" ñ")
    assert piece_characters.of_vocabulary(vocabulary)[vocabulary.unk_id] == 1
    assert not piece_characters.of_vocabulary(vocabulary)[[0, 1, *sentencepiece_models.sentinel_ids(vocabulary)]].any()


@pytest.fixture(scope="module")
def word_piece(tmp_path_factory):
    ids = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "no", "##où", "un"]
    model = tokenizers.models.WordPiece({x: i for i, x in enumerate(ids)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(ids[:5])
    file = tmp_path_factory.mktemp("word_piece") / "tokenizer.json"
    tokenizer.save(str(file))
    return TokenizerVocabulary(str(file))


def test_word_pieces(word_piece):
    assert _sum(word_piece, "un nooù un") == len(" un nooù un")
    assert not piece_characters.of_vocabulary(word_piece)[[0, 2, 3, 4]].any()


def test_byte_level_pieces(tmp_path):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        special_tokens=["<pad>", "</s>", "<extra_id_0>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        vocab_size=270,
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = T5TokenizerVocabulary(str(tmp_path / "tokenizer.json"))
    assert _sum(vocabulary) == len(TEXT)
    assert not piece_characters.of_vocabulary(vocabulary)[:3].any()


def test_labels_have_none():
    assert piece_characters.of_vocabulary(LabelVocabulary(["a", "b"])) is None
    assert isinstance(piece_characters.of_vocabulary(ByteVocabulary()), np.ndarray)
