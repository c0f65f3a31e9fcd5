"""What a card of a T5 knows of its vocabulary."""

from convert.model_files.hf import hf_tokenizer
from limba.addons.cards import t5_card


def test_texts_as_the_vocabulary_writes_them(spiece_model, tmp_path):
    tokenizer = hf_tokenizer.from_vocabulary(hf_tokenizer.describe(spiece_model))
    assert t5_card._written(tokenizer)("（１）ｌｓ ") == "(1)ls"
    hf_tokenizer.write(tokenizer, tmp_path)
    tokenizer = hf_tokenizer.from_json(tmp_path / "tokenizer.json")
    assert t5_card._written(tokenizer)("（１）ｌｓ ") == "(1)ls"
