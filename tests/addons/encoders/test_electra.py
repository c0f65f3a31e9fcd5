"""ELECTRA's pre-training exports two models: the detector of replaced tokens, and the generator."""

import dataclasses
import json

import gin
import numpy as np
import pytest

from convert.compare import encoder_outputs
from convert.families import heads
from convert.families.table import find_encoder
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.model_files.model import ModelHints
from convert.to_hf import to_hf
from limba import infer
from limba.checkpoint_files import run_folder
from tests.convert.encoders import conftest

EXPORTED = conftest.DETECTORS
_NAME = "electra detector"


def test_a_detector_has_the_logits_of_transformers_4_and_5_and_comes_back(exported, in_5, tmp_path):
    folder, report = exported[_NAME]
    found = conftest.largest(report, "safetensors")
    assert found.keys() == {"PyTorch", "NumPy"} and max(found.values()) < 1e-5
    content = json.loads((folder / "config.json").read_text())
    assert content["architectures"] == ["ElectraForPreTraining"] and content["embedding_size"] == 16
    assert "AutoModelForPreTraining" in (folder / "README.md").read_text()
    inputs, model = conftest.batch(_NAME, folder)
    ours = encoder_outputs.limba_logits(model, {"tokens": inputs["input_ids"], "token_types": inputs["token_type_ids"]})
    assert np.abs(ours).max() > 0.5
    real = inputs["input_ids"] != 0
    np.testing.assert_allclose(ours[..., 0][real], in_5[_NAME]["logits"][real], atol=1e-5)

    checkpoint = from_hf(f"{folder}_again", tmp_path / "back")
    back = any_format.open_model(checkpoint)
    assert back.head == heads.OF_DETECTOR and back.family.name == "electra"
    for path, tensor in model.tensors.items():
        np.testing.assert_array_equal(np.asarray(tensor), np.asarray(back.tensors[path]), err_msg=path)
    assert "include 'gin/models/encoder_electra.gin'" in (tmp_path / "back" / "model.gin").read_text()
    gin.clear_config()
    with pytest.raises(ValueError, match="is the encoder of a pre-training without its generator, which fills masks"):
        infer.main(["--run_dir", str(tmp_path / "back"), "--input", "a [MASK]"])


def test_the_generator_is_a_masked_language_model_with_the_same_tables(exported, tmp_path):
    folder, _ = exported[_NAME]
    run = folder.parent / f"run_{_NAME}"
    hints = ModelHints(generator=True)
    report = to_hf(run, tmp_path / "generator", hints=hints)
    found = conftest.largest(report, "safetensors")
    assert found.keys() == {"PyTorch", "NumPy"} and max(found.values()) < 1e-5
    content = json.loads((tmp_path / "generator" / "config.json").read_text())
    assert content["architectures"] == ["ElectraForMaskedLM"]
    assert (content["hidden_size"], content["embedding_size"], content["num_attention_heads"]) == (8, 16, 1)
    detector, generator = (any_format.open_model(run, given) for given in (ModelHints(), hints))
    table = "token_embedder/embedding"
    np.testing.assert_array_equal(np.asarray(detector.tensors[table]), np.asarray(generator.tensors[table]))
    assert run_folder.load_run_info(detector.path)["generator"]["emb_dim"] == 8
    with pytest.raises(ValueError, match="has no generator: it is not of a pre-training"):
        any_format.open_model(from_hf(tmp_path / "generator", tmp_path / "back"), hints)


def test_no_other_family_detects_replaced_tokens(exported):
    folder, _ = exported[_NAME]
    model = any_format.open_model(folder)
    with pytest.raises(ValueError, match=r"For the nearest, ElectraForPreTraining, .* norm is 'rms_norm'"):
        find_encoder(dataclasses.replace(model.config, norm="rms_norm"), heads.OF_DETECTOR)
