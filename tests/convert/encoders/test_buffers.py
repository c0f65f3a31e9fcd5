"""Tensors of a folder that are no parameters: those that are known are passed over, whatever their dtype."""

import json

import numpy as np
import pytest
import safetensors.numpy
import torch

from convert.from_hf import from_hf
from convert.to_hf import to_hf
from limba.checkpoint_files import saved_tensors
from tests.convert.encoders.conftest import VARIANTS

POSITIONS = np.arange(48)[None]
# What older versions of transformers, and today's, saved beside the parameters.
BUFFERS = {
    "bert": {"bert.embeddings.position_ids": POSITIONS, "bert.embeddings.token_type_ids": 0 * POSITIONS},
    "roberta_prelayernorm": {"roberta_prelayernorm.embeddings.position_ids": POSITIONS},
    "mpnet": {"mpnet.embeddings.position_ids": POSITIONS},
    "modernbert": {"model.rotary_emb.full_attention_inv_freq": np.ones(4, np.float32)}
    | {f"model.layers.{i}.attn.rotary_emb.inv_freq": np.ones(4, np.float32) for i in range(3)},
}
# Copies of a bias under another name.
TWINS = {
    "bert": ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    "roberta_prelayernorm": ("lm_head.bias", "lm_head.decoder.bias"),
    "mpnet": ("lm_head.bias", "lm_head.decoder.bias"),
    "roformer": ("cls.predictions.bias", "cls.predictions.decoder.bias"),
}


@pytest.fixture
def exported(new_encoder, tmp_path):
    """The export of a small encoder, and its tensors by name."""

    def export(variant):
        run = new_encoder(tmp_path / "run", **({"num_layers": 2} | VARIANTS[variant]))
        to_hf(run, tmp_path / "folder", verify=False)
        return tmp_path / "folder", safetensors.numpy.load_file(tmp_path / "folder/model.safetensors")

    return export


def _converted(folder, out):
    checkpoint = from_hf(folder, out, verify=False)
    return {name: np.asarray(tensor) for name, tensor in saved_tensors.open_tensors(checkpoint).items()}


@pytest.mark.parametrize("variant", ["bert", "modernbert", "roformer"])
def test_buffers_and_twins_are_passed_over(exported, tmp_path, capsys, variant):
    folder, tensors = exported(variant)
    expected = _converted(folder, tmp_path / "plain")
    own, twin = TWINS.get(variant, ("", ""))
    more = BUFFERS.get(variant, {}) | ({twin: tensors[own]} if own else {})
    safetensors.numpy.save_file(tensors | more, folder / "model.safetensors")
    np.testing.assert_equal(_converted(folder, tmp_path / "safetensors"), expected)
    (folder / "model.safetensors").unlink()
    torch.save({name: torch.tensor(x) for name, x in (tensors | more).items()}, folder / "pytorch_model.bin")
    np.testing.assert_equal(_converted(folder, tmp_path / "torch"), expected)
    assert "position_ids" not in capsys.readouterr().out


@pytest.mark.parametrize("variant", ["bert", "modernbert"])
def test_a_wrapped_model_is_converted_and_checked_without_transformers(exported, tmp_path, capsys, variant):
    folder, tensors = exported(variant)
    expected = _converted(folder, tmp_path / "plain")
    wrapped = {f"_orig_mod.{name}": x for name, x in tensors.items()}
    safetensors.numpy.save_file(wrapped, folder / "model.safetensors")
    capsys.readouterr()
    checkpoint = from_hf(folder, tmp_path / "out")
    found = {name: np.asarray(tensor) for name, tensor in saved_tensors.open_tensors(checkpoint).items()}
    np.testing.assert_equal(found, expected)
    assert "transformers does not know the names of the tensors" in capsys.readouterr().out


def test_shards_and_an_encoder_alone(exported, tmp_path):
    """As sentence encoders are: names without the prefix, in shards whose index names the buffer too."""
    folder, tensors = exported("bert")
    (folder / "model.safetensors").unlink()
    alone = {name.removeprefix("bert."): x for name, x in tensors.items() if name.startswith("bert.")}
    shards = [alone, {"embeddings.position_ids": POSITIONS}]
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05}-of-00002.safetensors"
        safetensors.numpy.save_file(shard, folder / file)
        weight_map |= dict.fromkeys(shard, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert "target/encoder/layers_1/mlp/wo/kernel" in _converted(folder, tmp_path / "out")


@pytest.mark.parametrize("name", ["bert.embeddings.other_ids", "bert.position_ids", "position_ids_of_mine"])
def test_an_unknown_tensor_stays_an_error(exported, tmp_path, name):
    folder, tensors = exported("bert")
    safetensors.numpy.save_file(tensors | {name: POSITIONS}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=f"{name} is I64; weights are one of F64, F32, F16, BF16"):
        from_hf(folder, tmp_path / "out", verify=False)
    safetensors.numpy.save_file(tensors | {name: POSITIONS.astype(np.float32)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=f"{name} has no place in the network"):
        from_hf(folder, tmp_path / "out", verify=False)
    assert not (tmp_path / "out").exists()
