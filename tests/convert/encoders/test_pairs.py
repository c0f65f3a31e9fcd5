"""A masked language model with a head for sentence pairs, both ways: BertForPreTraining, and classes that have no such
head."""

import json
import os
import sys

import gin
import numpy as np
import pytest

from convert.compare import encoder_outputs
from convert.families import heads
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba import models
from limba.gin_config import gin_files
from limba.network.encoders.sentence_pairs import MaskedLanguageModelWithPairs
from tests.convert import recorded
from tests.convert.encoders import conftest
from tests.convert.encoders.test_both_ways import SIZES

EXPORTED = conftest.PAIRS


def _differences(report, which):
    """The largest ones of both kinds of logits, by what is compared."""
    found = {row["what"]: row["value"] for row in report["comparisons"][which] if "logits" in row["what"]}
    return {what: value for what, value in found.items() if value is not None}


def test_an_export_has_both_logits_of_transformers_4_and_of_numpy(exported):
    folder, report = exported["bert pairs"]
    found = _differences(report, "safetensors")
    print(found)
    libraries = ("B in PyTorch", "B in NumPy")
    assert {f"{what}, {of}" for what in ("logits", "pair logits") for of in libraries} <= found.keys()
    assert max(found.values()) < 1e-5
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["BertForPreTraining"]


def test_an_export_has_both_logits_of_transformers_5_and_fills_a_mask(exported, in_5, tmp_path):
    folder, _ = exported["bert pairs"]
    inputs, model = conftest.batch("bert pairs", folder)
    ours = encoder_outputs.limba_outputs(
        model, {"tokens": inputs["input_ids"], "token_types": inputs["token_type_ids"]}
    )
    assert np.abs(ours["pair logits"]).max() > 0.1 and np.ptp(ours["pair logits"], axis=0).max() > 0.01
    # Class 0 of transformers is "B follows A", which is label 1 of Limba's rows, and so logit 0.
    assert np.abs(ours["pair logits"][:, 0] - in_5["bert pairs"]["pair_logits"]).max() < 1e-5
    real = inputs["input_ids"] != 0
    assert np.abs(ours["logits"] - in_5["bert pairs"]["logits"])[real].max() < 1e-5
    assert len(json.loads(str(in_5["bert pairs"]["found"]))["answers"]) == 5

    back = any_format.open_model(from_hf(f"{folder}_again", tmp_path / "back", verify=False))
    assert back.head == heads.OF_PAIRS and back.tensors.keys() == model.tensors.keys()
    for path, tensor in model.tensors.items():
        np.testing.assert_array_equal(np.asarray(tensor), np.asarray(back.tensors[path]), err_msg=path)


def test_as_recorded(exported, tmp_path):
    folder, report = exported["bert pairs"]
    recorded.compare("bert pairs", folder, report, from_hf(folder, tmp_path / "run", verify=False))


def test_what_transformers_makes_becomes_a_checkpoint_with_both_heads(tmp_path, checks_in_forks):
    settings = SIZES | {"max_position_embeddings": 48, "layer_norm_eps": 0.01}
    request = {"version": "4", "new": [("BertForPreTraining", settings, str(tmp_path / "new"))]}
    (tmp_path / "request.json").write_text(json.dumps(request))
    command = [sys.executable, "-m", "tests.convert.encoders.run_in_transformers", str(tmp_path / "request.json")]
    done = checks_in_forks(command, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    conftest.write_tokenizer(tmp_path / "new" / "tokenizer.json", conftest.SPECIAL_TOKENS)

    checkpoint = from_hf(tmp_path / "new", tmp_path / "run")
    found = _differences(json.loads((checkpoint / "conversion_report.json").read_text()), "orbax")
    assert len(found) == 4 and max(found.values()) < 1e-5
    opened = any_format.open_model(checkpoint)
    assert opened.head == heads.OF_PAIRS and opened.tensors["pair_head/kernel"].shape == (24, 2)
    gin.clear_config()
    gin_files.parse_gin_flags([str(tmp_path / "run" / "model.gin")], ["OPTIMIZER = None"])
    model = gin.get_configurable(models.EncoderOnlyModel)()
    assert isinstance(model.module, MaskedLanguageModelWithPairs)
    found = {"/".join(path) for path in _paths(model.param_shapes_and_axes()[0])}
    assert found == set(opened.tensors)


def _paths(tree, *path):
    for name, value in tree.items():
        yield from _paths(value, *path, name) if isinstance(value, dict) else [(*path, name)]


@pytest.mark.parametrize("name", ["roformer"])
def test_a_family_without_such_a_class_leaves_the_head_out_and_says_so(name, new_encoder, tmp_path, capsys):
    run = new_encoder(tmp_path / "run", heads.OF_PAIRS, **(conftest.VARIANTS[name] | {"num_layers": 1}))
    report = to_hf(run, tmp_path / "out", verify=False)
    said = "Hugging Face has no RoFormerForPreTraining: the head for sentence pairs is left out (classifier_head/dense/"
    assert said in (capsys.readouterr().err + json.dumps(report)).replace("\n", " ")
    back = any_format.open_model(tmp_path / "out")
    assert back.head == heads.OF_MASKED_LM and json.loads((tmp_path / "out" / "config.json").read_text())[
        "architectures"
    ] == ["RoFormerForMaskedLM"]
