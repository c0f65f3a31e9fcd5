"""A T5's folder whose tokenizer makes other rows than a text and </s>: a run reads them, and so does its export."""

import json

import pytest
import tokenizers
import transformers

from convert.model_files.hf import folder_tokenizer, hf_tokenizer, tokenizer_settings
from tasks.pretraining import masked_text
from tests.convert import vocabularies

_TEXTS = ["the house", "", "ba ce di fo gu la me ni", "<extra_id_0> ba"]
_SPECIAL = [("</s>", 1), ("<unk>", 2), ("<extra_id_0>", 511)]


def _template(single):
    return tokenizers.processors.TemplateProcessing(single=single, special_tokens=_SPECIAL)


def _write(folder, template=None, **settings):
    """The folder of a T5 as transformers writes it, changed."""
    model = hf_tokenizer.from_file(vocabularies.train(folder / "of_run.model"), 100)
    hf_tokenizer.write(model, folder, inputs_length=512)
    (folder / "spiece.model").unlink()
    if template is not None:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.post_processor = template
        tokenizer.save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | settings))


@pytest.mark.parametrize(
    ("template", "settings", "is_sentencepiece"),
    [
        (None, {}, True),
        (_template("<extra_id_0> $A"), {}, False),
        (_template("<unk> $A </s>"), {}, False),
        (_template("$A"), {}, False),
        (None, {"truncation_side": "left"}, False),
    ],
)
def test_rows_are_those_of_transformers_and_of_the_export(tmp_path, template, settings, is_sentencepiece):
    folder, export = tmp_path / "folder", tmp_path / "export"
    folder.mkdir(), export.mkdir()
    _write(folder, template, **settings)
    described = folder_tokenizer.read(folder)
    assert (described["class"] == "SentencePieceVocabulary") == is_sentencepiece
    vocabulary = masked_text.open_vocabulary(described)
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(described), export, tokenizer_settings.of_folder(folder))
    for place in (folder, export):
        theirs = transformers.AutoTokenizer.from_pretrained(place)
        for most in (None, 5):
            cut = {"truncation": True, "max_length": most} if most else {}
            assert [row.ids for row in vocabulary.rows(_TEXTS, most)] == theirs(_TEXTS, **cut)["input_ids"], place


def test_a_side_that_only_spiece_model_would_have_is_refused(tmp_path):
    _write(tmp_path)
    vocabularies.train(tmp_path / "spiece.model")
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "left", "extra_ids": 100}')
    with pytest.raises(ValueError, match=r"truncation_side is 'left', and a spiece\.model alone does not say it"):
        folder_tokenizer.read(tmp_path)
