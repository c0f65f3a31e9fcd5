"""What an export of a T5 knows of its vocabulary."""

from convert.exports.t5_export import T5Export
from convert.model_files.hf import hf_tokenizer


def test_texts_as_the_vocabulary_writes_them(spiece_model, tmp_path):
    export = T5Export.__new__(T5Export)
    export.tokenizer = hf_tokenizer.from_vocabulary(hf_tokenizer.describe(spiece_model))
    assert export._written()("（１）ｌｓ ") == "(1)ls"
    hf_tokenizer.write(export.tokenizer, tmp_path)
    export.tokenizer = hf_tokenizer.from_json(tmp_path / "tokenizer.json")
    assert export._written()("（１）ｌｓ ") == "(1)ls"
