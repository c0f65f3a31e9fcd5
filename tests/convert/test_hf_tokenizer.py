"""Hugging Face's tokenizers give SentencePiece's ids on what is exported."""

import json
from pathlib import Path

import pytest
import sentencepiece

from convert import hf_tokenizer

NUM_PIECES = 412
# Version 5 of transformers sets a space before what follows a sentinel directly, in every T5.
SENTINELS_AND_PUNCTUATION = [
    "ba <extra_id_0>. Ce",
    "<extra_id_0>, ba <extra_id_1>; ce <extra_id_2>",
    "a <extra_id_3>ba",
]


def vocabulary(file: Path, **fields) -> dict:
    return {
        "class": "SentencePieceVocabulary",
        "sentencepiece_model_file": str(file),
        "extra_ids": 100,
        "vocab_size": NUM_PIECES + 100,
    } | fields


@pytest.fixture(scope="module")
def folder(spiece_model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(vocabulary(spiece_model)), path)
    (path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    return path


@pytest.mark.parametrize("use_fast", [False, True], ids=["slow", "fast"])
def test_ids_are_sentencepiece_ids_and_eos(folder, reference, texts, use_fast):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=use_fast)
    assert tokenizer.is_fast == use_fast
    assert len(tokenizer) == NUM_PIECES + 100
    assert tokenizer.convert_tokens_to_ids("<extra_id_0>") == NUM_PIECES + 99
    assert tokenizer.convert_tokens_to_ids("<extra_id_99>") == NUM_PIECES
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    for text in [*texts, *SENTINELS_AND_PUNCTUATION]:
        assert tokenizer(text).input_ids == [*reference.encode(text), 1], text


def test_a_decoded_text_is_the_text(folder, sentences):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in sentences:
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_missing_model_says_where_to_give_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.model.*--vocab FILE"):
        hf_tokenizer.from_vocabulary(vocabulary(tmp_path / "gone.model"))


def test_model_may_lie_elsewhere(tmp_path, spiece_model):
    tokenizer = hf_tokenizer.from_vocabulary(vocabulary(tmp_path / "gone.model"), str(spiece_model))
    assert tokenizer.vocab_size == NUM_PIECES + 100


def test_another_model_than_in_training_is_noticed(spiece_model):
    with pytest.raises(ValueError, match=r"412 pieces and 100 sentinels, 512 ids; the run had 600"):
        hf_tokenizer.from_vocabulary(vocabulary(spiece_model, vocab_size=600))


def test_byte_vocabulary_is_refused():
    with pytest.raises(ValueError, match="ByteVocabulary; only a SentencePieceVocabulary can be exported yet"):
        hf_tokenizer.from_vocabulary({"class": "ByteVocabulary", "sentencepiece_model_file": None})


def test_a_file_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "text.model").write_text("not a model")
    with pytest.raises(ValueError, match="not a SentencePiece model"):
        hf_tokenizer.from_vocabulary(vocabulary(tmp_path / "text.model"))


def test_other_special_ids_are_refused(tmp_path, sentences):
    with (tmp_path / "llama.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=file, vocab_size=80, minloglevel=2
        )
    with pytest.raises(ValueError, match=r"'pad': -1, 'eos': 2, 'unk': 0.*needs pad 0, eos 1, unk 2"):
        hf_tokenizer.from_vocabulary(vocabulary(tmp_path / "llama.model"))
