"""A tokenizer with two ids exchanged gives the same tokens, of every kind of model."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, models, processors

from convert.encoders import tokenizer_folder
from tests.convert.encoders.conftest import SPECIAL_TOKENS, write_tokenizer


def _bpe():
    """As ModernBERT's: its special tokens come behind the vocabulary."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.post_processor = processors.RobertaProcessing(sep=("[SEP]", 6), cls=("[CLS]", 5))
    tokenizer.enable_padding(pad_id=3, pad_token="[PAD]")
    return tokenizer


def _unigram():
    pieces = [("[UNK]", 0.0), ("[PAD]", 0.0), ("a", -1.0), ("b", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 4), ("[SEP]", 5)]
    )
    return tokenizer


@pytest.mark.parametrize(("tokenizer", "padding"), [(_bpe(), 3), (_unigram(), 1)])
def test_exchanged_ids(tokenizer, padding):
    content = json.loads(tokenizer.to_str())
    changed = tokenizer_folder.with_exchanged_ids(content, 0, padding, "here")
    new = Tokenizer.from_str(json.dumps(changed))
    other = {0: padding, padding: 0}
    assert new.token_to_id("[PAD]") == 0
    for text in ("abba", "a[MASK]b", "ba"):
        old, found = tokenizer.encode(text), new.encode(text)
        assert found.tokens == old.tokens
        assert found.ids == [other.get(i, i) for i in old.ids]
    assert json.loads(tokenizer.to_str()) == content


def test_a_token_that_is_missing_is_named(tmp_path):
    file = write_tokenizer(tmp_path / "tokenizer.json", SPECIAL_TOKENS[:4])
    with pytest.raises(ValueError, match=r"no \[MASK\]"):
        tokenizer_folder.describe(file)


def test_special_tokens_are_put_around_texts(tmp_path):
    file = write_tokenizer(tmp_path / "tokenizer.json", SPECIAL_TOKENS)
    ids = tokenizer_folder.write(file, tmp_path, pad_id=1, most_tokens=9, has_pairs=True)
    assert ids == {"pad": 1, "unk": 0, "cls": 2, "sep": 3, "mask": 4}
    written = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    pair = written.encode("w7", "w8 new")
    assert (pair.ids, pair.type_ids) == ([2, 7, 3, 8, 0, 3], [0, 0, 0, 1, 1, 1])
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["mask_token"] == "[MASK]" and "token_type_ids" in config["model_input_names"]
