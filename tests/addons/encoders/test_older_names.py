"""Folders of NomicBERT on the hub have the keys and the names of tensors of Nomic's own program."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert.from_hf import from_hf
from convert.model_files import any_format
from convert.to_hf import to_hf
from tests.convert.encoders.conftest import VARIANTS

KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "rope_theta": "rotary_emb_base",
    "max_position_embeddings": "n_positions",
}
# Of nomic-bert-2048's config.json.
OWN = {
    "activation_function": "swiglu",
    "auto_map": {"AutoModelForMaskedLM": "modeling_hf_nomic_bert.NomicBertForPreTraining"},
    "causal": False,
    "fused_bias_fc": True,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "pad_vocab_size_multiple": 64,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "scale_attn_weights": True,
    "use_flash_attn": True,
    "use_rms_norm": False,
}


@pytest.fixture
def hub(new_encoder, tmp_path):
    """An export, and the same folder as the hub has such models."""
    to_hf(new_encoder(tmp_path / "run", **VARIANTS["nomic_bert"]), tmp_path / "hub", verify=False)
    content = json.loads((tmp_path / "hub/config.json").read_text())
    for key in ("hidden_act", "rope_parameters", "head_dim"):
        del content[key]
    content = {KEYS.get(key, key): x for key, x in content.items()} | OWN
    (tmp_path / "hub/config.json").write_text(json.dumps(content))
    found = load_file(tmp_path / "hub/model.safetensors")
    older = {}
    for name, tensor in found.items():
        name = name.replace("nomic_bert.layers", "bert.encoder.layers").replace("nomic_bert.", "bert.")
        name = name.replace("bert.embeddings.LayerNorm", "bert.emb_ln").replace(".self_attn.o_proj", ".attn.out_proj")
        name = name.replace("up_proj", "fc11").replace("gate_proj", "fc12").replace("down_proj", "fc2")
        name = name.replace("post_attention_layernorm", "norm1").replace("post_mlp_layernorm", "norm2")
        older[name] = tensor
    for i in range(2):
        layer = f"bert.encoder.layers.{i}"
        parts = [older.pop(f"{layer}.self_attn.{part}_proj.weight") for part in "qkv"]
        older[f"{layer}.attn.Wqkv.weight"] = np.concatenate(parts)
    older["cls.predictions.decoder.weight"] = older["bert.embeddings.word_embeddings.weight"].copy()
    older["cls.predictions.decoder.bias"] = older.pop("cls.predictions.bias")
    save_file(older, tmp_path / "hub/model.safetensors", {"format": "pt"})
    return tmp_path


def test_a_folder_of_the_hub_is_the_network(hub, capsys):
    checkpoint = from_hf(hub / "hub", hub / "back", verify=False)
    assert "auto_map a table of 1 (transformers has this class itself" in capsys.readouterr().err
    original, back = any_format.open_model(hub / "run"), any_format.open_model(checkpoint)
    assert original.tensors.keys() == back.tensors.keys()
    for name, tensor in original.tensors.items():
        np.testing.assert_array_equal(np.asarray(tensor), np.asarray(back.tensors[name]), err_msg=name)
    fields = (
        "rotary_base",
        "mlp_activations",
        "norm_epsilon",
        "dropout_rate",
        "attention_dropout_rate",
        "max_positions",
    )
    for field in fields:
        assert getattr(back.config, field) == getattr(original.config, field), field
    (hub / "hub/config.json").write_text((hub / "hub/config.json").read_text().replace("swiglu", "geglu"))
    assert any_format.open_model(hub / "hub").config.mlp_activations == ("gelu_erf", "linear")
