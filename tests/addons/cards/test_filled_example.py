"""The model card of an encoder shows a sentence of the run's data, and what the model fills into it."""

import json
import re

import numpy as np
import pytest

from convert.compare import encoder_outputs
from convert.families import heads
from convert.families.heads import Head
from convert.model_files import encoder_files
from convert.model_files.hf import tokenizer_folder
from convert.to_hf import to_hf
from limba.addons.cards import filled_example, run_example
from limba.addons.cards.card_example import Example

MODULE = """
from tasks import objectives, pretraining
from tasks.vocabularies import TokenizerVocabulary
pretraining.register_pretraining_task(
    "small",
    data_files={{"validation": {data!r}, "train": {data!r}}},
    vocabulary=TokenizerVocabulary({tokenizer!r}),
    objective=objectives.MaskedLM(),
)
"""


def test_a_sentence_of_the_run(tokenizer_file, tmp_path, monkeypatch):
    (tmp_path / "data.jsonl").write_text(json.dumps({"text": "The old cat sleeps under a tree."}) + "\n")
    (tmp_path / "masked_cats.py").write_text(
        MODULE.format(data=str(tmp_path / "data.jsonl"), tokenizer=str(tokenizer_file))
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    of_run = run_example.of_run({"task": "small"}, "from __gin__ import dynamic_registration\nimport masked_cats\n")
    found = filled_example.find(of_run, "", "[MASK]")
    assert found.text == "The old cat [MASK] under a tree."
    assert found.source == "A sentence of the validation data without its word “sleeps”. "


def test_the_card_has_the_model_s_answer(new_encoder, tmp_path, monkeypatch):
    run = new_encoder(tmp_path / "run")
    refused = pytest.raises(
        ValueError, match=r"^--example 'w7': the model fills \[MASK\], which the text does not have"
    )
    with refused, monkeypatch.context() as before_the_weights:
        before_the_weights.setattr("convert.to_hf.write_files", None)
        to_hf(run, tmp_path / "hf", card={"example": "w7"}, verify=False)
    assert not (tmp_path / "hf").exists()
    to_hf(run, tmp_path / "hf", verify=False)
    card = (tmp_path / "hf/README.md").read_text("utf-8")
    model, file = encoder_files.open_folder(tmp_path / "hf"), tmp_path / "hf/tokenizer.json"
    ids = np.asarray([tokenizer_folder.encode(file, "1, 2, 3, [MASK], 5, 6.")], np.int32)
    logits = encoder_outputs.limba_logits(model, {"tokens": ids, "token_types": np.zeros_like(ids)})[0]
    of_mask = logits[list(ids[0]).index(tokenizer_folder.special_ids(file)["mask"])]
    word = tokenizer_folder.decode(file, [int(of_mask.argmax())])
    assert re.search(rf"\nThe model fills `\[MASK\]` with “{re.escape(word)}” \(\d+\.\d%\)\.\n", card)


def test_the_card_of_a_classifier_has_a_row_of_the_run(new_encoder, tmp_path, monkeypatch):
    run = new_encoder(tmp_path / "run", Head(heads.SEQUENCE, ("glad", "sad"), "tanh"), num_layers=1)
    row = Example("row", "Кіт радіє.", "glad", split="train")
    monkeypatch.setattr(run_example, "find", lambda *_: row)
    to_hf(run, tmp_path / "hf", verify=False)
    card = (tmp_path / "hf/README.md").read_text("utf-8")
    assert "print(model('Кіт радіє.'))" in card
    assert "The text is a row of the training data, which says `glad`." in card
