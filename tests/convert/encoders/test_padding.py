"""Padding where config.json has another id of it than the tokenizer: rows and tokens are exchanged together."""

import dataclasses
import json

import numpy as np
import pytest
from tokenizers import Tokenizer

from convert import to_hf
from convert.__main__ import main as convert_main
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.model_files.hf.tokenizer_settings import Settings
from convert.tensors import weight_files
from tests.convert.encoders import conftest

TEXT = "w9 w5 w7 [MASK] unknown w11"


def _folder(model, folder, of_tokenizer, of_config):
    """A folder in which `of_tokenizer` is the padding of tokenizer and embedding; config.json says the other."""
    model = dataclasses.replace(model, tokenizer_settings=Settings(pad_id=of_tokenizer))
    folder.mkdir()
    to_hf.write_files(folder, to_hf.export_of(model), ("safetensors",), "float32", 10**9)
    _set_padding(folder, of_config)
    return folder


def _set_padding(folder, pad_id):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pad_token_id": pad_id}))


def _ids(file):
    return Tokenizer.from_file(str(file)).encode(TEXT, add_special_tokens=False).ids


def _stored(model):
    return dataclasses.replace(model, tokenizer_settings=Settings()).stored()


def _assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(np.asarray(found[name]), np.asarray(tensor), name)


@pytest.mark.parametrize(
    ("name", "of_tokenizer", "of_config"),
    [("bert", 0, 7), ("bert", 7, 0), ("roformer", 7, 5), ("modernbert", 7, 5), ("modernbert", 7, 7)],
)
def test_the_padding_is_the_tokenizers(name, of_tokenizer, of_config, new_encoder, tmp_path, capsys):
    model = any_format.open_checkpoint(new_encoder(tmp_path / "run", **conftest.VARIANTS[name]))
    folder = _folder(model, tmp_path / "model", of_tokenizer, of_config)
    back = any_format.open_checkpoint(from_hf(folder, tmp_path / "back", verify=of_config == 5))
    assert ("pad_token_id is" in capsys.readouterr().err) == (of_tokenizer != of_config)
    _assert_same(_stored(back), _stored(model))
    assert _ids(back.vocabulary_file) == _ids(model.vocabulary_file) == [9, 5, 7, 4, 1, 11]
    to_hf.to_hf(tmp_path / "back", tmp_path / "again", verify=False)
    assert json.loads((tmp_path / "again/config.json").read_text())["pad_token_id"] == of_tokenizer
    assert _ids(tmp_path / "again/tokenizer.json") == _ids(folder / "tokenizer.json")
    _assert_same(weight_files.open_tensors(tmp_path / "again"), weight_files.open_tensors(folder))


@pytest.mark.parametrize(
    ("name", "of_tokenizer", "of_config"), [("roberta", 0, 1), ("xlm_roberta", 1, 0), ("roberta_prelayernorm", 5, 1)]
)
def test_positions_that_are_counted_from_another_padding_are_refused(
    name, of_tokenizer, of_config, new_encoder, tmp_path, capsys
):
    model = any_format.open_checkpoint(new_encoder(tmp_path / "run", **conftest.VARIANTS[name]))
    folder = _folder(model, tmp_path / "model", of_tokenizer, of_config)
    assert convert_main(["from-hf", str(folder), str(tmp_path / "back")]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"pad_token_id is {of_config}, and the tokenizer's padding is {of_tokenizer}. " in error
    assert "begins its positions behind pad_token_id" in error and not (tmp_path / "back").exists()
    # With the same padding in both, positions and rows come back.
    _set_padding(folder, of_tokenizer)
    back = any_format.open_checkpoint(from_hf(folder, tmp_path / "back", verify=False))
    _assert_same(_stored(back), _stored(model))


def test_mpnet_counts_from_1_whatever_the_tokenizer_says(new_encoder, tokenizer_file, tmp_path, capsys):
    run = new_encoder(tmp_path / "run", **conftest.VARIANTS["mpnet"])
    to_hf.to_hf(run, tmp_path / "model", verify=False)
    (tmp_path / "model/tokenizer.json").write_bytes(tokenizer_file.read_bytes())  # its padding is 0
    assert convert_main(["from-hf", str(tmp_path / "model"), str(tmp_path / "back")]) == 1
    assert "pad_token_id is 1, and the tokenizer's padding is 0. MPNet begins" in capsys.readouterr().err
