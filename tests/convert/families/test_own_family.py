"""A family from a package of the user's own: config.json and tensors with its names, there and back."""

import json
import subprocess
import sys

import numpy as np
import pytest

from convert.tensors import safetensors_files
from limba.checkpoint_files import saved_tensors
from tests.convert.conftest import REPOSITORY

PACKAGE = """
import dataclasses
from convert.families import t5_1_1

FAMILY = dataclasses.replace(
    t5_1_1.FAMILY,
    name="mylang_t5",
    title="Mylang T5",
    model_type="mylang_t5",
    model_class="MylangT5ForConditionalGeneration",
    in_transformers=False,
    defaults={"feed_forward_proj": "gated-swish", "tie_word_embeddings": False},
    activations={"gated-swish": ("swish", "linear")},
    config_keys={"d_model": "hidden_size"},
    modules={"lm_head": "output", "SelfAttention": "attention"},
    generation={"max_new_tokens": 64},
)
"""
NETWORK = {"logits_via_embedding": False, "mlp_activations": ("swish", "linear")}


@pytest.fixture
def packages(tmp_path):
    """A folder for sys.path as pip installs into."""
    folder = tmp_path / "packages"
    (folder / "mylang-1.0.dist-info").mkdir(parents=True)
    (folder / "mylang.py").write_text(PACKAGE)
    (folder / "mylang-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: mylang\nVersion: 1.0\n")
    (folder / "mylang-1.0.dist-info/entry_points.txt").write_text("[limba.families]\nmylang_t5 = mylang:FAMILY\n")
    return folder


@pytest.mark.exhaustive
def test_a_family_of_another_package_converts_both_ways(new_run, tmp_path, packages):
    def convert(*arguments):
        environment = {"PYTHONPATH": f"{REPOSITORY}:{packages}", "PATH": "", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "convert", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run = new_run(tmp_path / "run", num_encoder_layers=1, num_decoder_layers=2, **NETWORK)
    out = convert("to-hf", run, "folder", "--family=mylang_t5")
    assert "transformers has no MylangT5ForConditionalGeneration" in out
    assert "swish is not among relu, silu, gelu_new" in out
    config = json.loads((tmp_path / "folder/config.json").read_text())
    expected = {"model_type": "mylang_t5", "hidden_size": 32, "feed_forward_proj": "gated-swish"}
    assert {key: config.get(key) for key in [*expected, "d_model"]} == {**expected, "d_model": None}
    assert json.loads((tmp_path / "folder/generation_config.json").read_text())["max_new_tokens"] == 64
    assert "A Mylang T5 encoder-decoder" in (tmp_path / "folder/README.md").read_text()

    trained = saved_tensors.open_tensors(run / "checkpoint_10")
    written = safetensors_files.open_tensors([tmp_path / "folder/model.safetensors"])
    for name, limba in {
        "output.weight": "target/decoder/logits_dense/kernel",
        "decoder.block.1.layer.0.attention.q.weight": "target/decoder/layers_1/self_attention/query/kernel",
    }.items():
        kernel = np.asarray(trained[limba])
        np.testing.assert_array_equal(np.asarray(written[name]), kernel.reshape(kernel.shape[0], -1).T)
    assert not [name for name in written if "lm_head" in name or "SelfAttention" in name]

    assert "(mylang_t5, " in convert("from-hf", "folder", "back")
    back = saved_tensors.open_tensors(tmp_path / "back/checkpoint_10")
    names = {name for name in trained if name.startswith("target/")}
    assert names == {name for name in back if name.startswith("target/")}
    for name in names:
        x, y = np.asarray(trained[name]), np.asarray(back[name])
        assert (x.dtype, x.tobytes()) == (y.dtype, y.tobytes()), name
