"""T5Gemma 2: runs of Limba's, and folders and the class of transformers 5, with its tower for images."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from convert.compare import t5_outputs, transformers_library
from convert.families import table
from convert.families.config_files import t5_config
from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from limba.addons.t5gemma.t5gemma2 import FAMILY
from limba.addons.transformers_check import transformers_process
from limba.checkpoints import checkpointing
from limba.network.gemma_layers import GemmaLayers
from limba.network.t5 import T5Config
from tests.addons.t5gemma import hub_gemmas, test_t5gemma
from tests.convert import conftest

GEMMA = GemmaLayers(
    num_kv_heads=2,
    rotary_base=900.0,
    norm_epsilon=1e-5,
    query_pre_attn_scalar=5.0,
    final_logit_softcapping=9.0,
    sliding_window=6,
    global_attention_every=2,
    merged_attention=True,
    qk_norm=True,
    shared_embedding=True,
    local_rotary_base=50.0,
    rotary_factor=4.0,
    halved_encoder_window=True,
)
FIELDS = test_t5gemma.FIELDS | {"logits_via_embedding": True, "num_encoder_layers": 2, "gemma_layers": GEMMA}


@pytest.fixture(scope="module")
def exported(new_run, tmp_path_factory):
    """The folder `out` of a run, and the report of its check."""
    home = tmp_path_factory.mktemp("gemma2")
    return home, to_hf(new_run(home / "run", **FIELDS), home / "out")


@pytest.fixture(scope="module")
def home(tmp_path_factory, forks5, spiece_model, exported):
    """A folder that transformers 5 made, with a tower; `exported` has its answer."""
    home = tmp_path_factory.mktemp("steps")
    config = hub_gemmas.settings("t5gemma2", 7)
    for stack in _stacks(config):
        stack["vocab_size"] = 512
    folder = exported[0] / "out"
    test_t5gemma.ask_transformers(home, forks5, spiece_model, FAMILY.model_class, config, folder)
    return home


def test_an_export_is_checked_and_comes_back_as_the_same_files(exported, tmp_path):
    home, report = exported
    rows = {row["what"]: row for row in report["comparisons"]["safetensors"]}
    assert rows["logits, B in NumPy"]["value"] < 1e-5
    assert report["family"] == "t5gemma2"
    assert "transformers has T5Gemma2ForConditionalGeneration since version 5." in (home / "out/README.md").read_text()
    stored = json.loads((home / "out/config.json").read_text())
    assert stored["encoder"]["text_config"]["layer_types"] == ["sliding_attention", "full_attention"]
    assert stored["decoder"]["rope_parameters"]["full_attention"]["factor"] == 4.0
    checkpoint = from_hf(home / "out", tmp_path / "run", verify=False)
    assert GemmaLayers(**checkpointing.load_run_info(checkpoint)["network"]["gemma_layers"]) == GEMMA
    to_hf(tmp_path / "run", tmp_path / "again", verify=False)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (home / "out" / name).read_bytes()


def test_twenty_steps_beside_transformers_lose_the_same(home, tmp_path, capsys):
    opened = any_format.open_model(from_hf(home, tmp_path / "run", verify=False))
    said = capsys.readouterr().out
    assert "Limba's T5s read texts, and no images: model.encoder.vision_tower (" in said
    assert "multi_modal_projector (2 tensors), model.encoder.embed_tokens.eoi_embedding." in said
    moving = "decoder/layers_1/self_attention/key_norm/scale"
    test_t5gemma.assert_steps_lose_the_same(home, opened, moving)


def test_transformers_5_makes_of_an_export_what_limba_does(home, exported):
    test_t5gemma.assert_transformers_answers_the_same(exported[0] / "run", exported[0] / "out")


def _stacks(content):
    return content["encoder"]["text_config"], content["decoder"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x["decoder"].update(attn_logit_softcapping=5.0), "decoder: attn_logit_softcapping is 5.0; "),
        (lambda x: x.update(tie_word_embeddings=False), "tie_word_embeddings is False"),
        (lambda x: x["encoder"].pop("text_config"), "encoder: text_config is None; it is the configuration of T5Gemma"),
        (lambda x: x["encoder"].update(my_key=1), "encoder: my_key is 1"),
        (lambda x: [y.update(rope_scaling=[1]) for y in _stacks(x)], "rope_scaling is a list of 1; it is an object"),
        (lambda x: [y.update(layer_types=-1) for y in _stacks(x)], "layer_types is -1; it is a list"),
        (lambda x: [y.update(sliding_window_pattern="x") for y in _stacks(x)], "sliding_window_pattern is 'x'; it is"),
        (lambda x: [y.update(hidden_activation=[1]) for y in _stacks(x)], "hidden_activation is a list of 1; it is a"),
        (
            lambda x: [y["rope_parameters"]["full_attention"].update(rope_type="yarn") for y in _stacks(x)],
            "rope_type of full_attention is 'yarn'; Limba has default, and linear",
        ),
    ],
)
def test_another_network_is_refused_by_its_key(exported, change, words, tmp_path):
    content = json.loads((exported[0] / "out/config.json").read_text())
    change(content)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=words):
        t5_config.network_config(file, t5_config.read(file))


def test_older_names_of_rotary_positions_and_windows(exported, tmp_path):
    """Of Gemma 3's first folders: keys of a stack, and a number in place of the kinds of layers."""
    content = json.loads((exported[0] / "out/config.json").read_text())
    for stack in _stacks(content):
        del stack["layer_types"], stack["rope_parameters"]
        stack |= {"sliding_window_pattern": 2, "rope_theta": 900.0, "rope_local_base_freq": 50.0}
        stack["rope_scaling"] = {"rope_type": "linear", "factor": 4.0}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(content))
    assert t5_config.network_config(file, t5_config.read(file)).gemma_layers == GEMMA


@pytest.mark.parametrize(
    ("layers", "fields", "words"),
    [
        ({"qk_norm": False}, {}, "gemma_layers.qk_norm is False, and in T5Gemma 2 it is True"),
        ({"halved_encoder_window": False}, {}, "halved_encoder_window is False"),
        ({"attn_logit_softcapping": 5.0}, {}, "attn_logit_softcapping is 5, which T5Gemma 2's class leaves out"),
        ({}, {"logits_via_embedding": False}, "logits_via_embedding is False"),
        ({"merged_attention": False}, {}, "gemma_layers.qk_norm is True, and in T5Gemma it is False"),
    ],
)
def test_what_the_class_does_not_hold_is_said(layers, fields, words):
    gemma = dataclasses.replace(GEMMA, **layers)
    assert words in table.no_class(T5Config(**conftest.SMALL | FIELDS | fields | {"gemma_layers": gemma}))


def test_without_windows_both_families_of_t5gemma_have_their_own_network():
    plain = GemmaLayers(merged_attention=True, qk_norm=True, shared_embedding=True)
    config = T5Config(**conftest.SMALL | FIELDS | {"gemma_layers": plain})
    assert table.no_class(config) == "" and table.find_t5(config, None).name == "t5gemma2"
    assert np.all(FAMILY.constants(config)["model.encoder.embed_tokens.eoi_embedding"] == np.zeros(32))


def test_a_check_with_transformers_5_runs_its_class(exported, python5, monkeypatch):
    """The part of a check that reads tensors one by one into the class, which version 4 does not have."""
    packages = next(Path(python5).parent.parent.glob("lib/python3.*/site-packages"))
    monkeypatch.setattr(transformers_library, "has_model", lambda model_type: True)
    model = any_format.open_model(exported[0] / "out")
    batch = t5_outputs.check_batch(model.config, np.arange(6, 60))
    with monkeypatch.context() as of_class:
        of_class.setattr(sys, "path", [str(packages), *sys.path])  # which the process of the class gets
        of_class.setattr(transformers_process, "subprocess", subprocess)
        output = t5_outputs.in_transformers(model, batch)
    assert output.reason == ""
    np.testing.assert_allclose(output.logits["logits"], t5_outputs.in_limba(model, batch)["logits"], atol=1e-5)
