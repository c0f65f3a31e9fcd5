"""config.json says what transformers needs, and nothing that it would misread."""

import json

import pytest

from convert.families import t5_1_0, t5_1_1
from convert.families.config_files import t5_config
from convert.families.table import t5_families
from limba.network.t5 import T5Config


def test_sizes_and_special_ids():
    config = T5Config(vocab_size=512, emb_dim=32, num_heads=3, head_dim=8, mlp_dim=48, num_decoder_layers=2)
    written = t5_config.model_config(config, t5_1_0.FAMILY, "float32", 160)
    expected = {
        "model_type": "t5",
        "vocab_size": 512,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_heads": 3,
        "num_layers": 6,
        "num_decoder_layers": 2,
        "feed_forward_proj": "relu",
        "n_positions": 160,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "torch_dtype": "float32",
    }
    assert {key: written[key] for key in expected} == expected


@pytest.mark.parametrize("tied", [False, True])
def test_only_tied_logits_are_scaled(tied):
    written = t5_config.model_config(T5Config(vocab_size=8, logits_via_embedding=tied), t5_1_1.FAMILY, "float32", None)
    assert written["tie_word_embeddings"] is tied
    assert written["scale_decoder_outputs"] is tied
    assert "n_positions" not in written


def test_a_decoder_without_layers_is_refused():
    with pytest.raises(ValueError, match="6 encoder and 0 decoder layers"):
        t5_config.model_config(T5Config(vocab_size=8, num_decoder_layers=0), t5_1_1.FAMILY, "float32", None)


def test_queries_that_are_scaled_are_refused():
    with pytest.raises(ValueError, match="scale_attn_logits"):
        t5_config.model_config(T5Config(vocab_size=8, scale_attn_logits=True), t5_1_1.FAMILY, "float32", None)


# ------------------------------------------------------- reading -----------------------------------------------------


@pytest.mark.parametrize("family", ["t5", "t5_1_1", "mt5", "umt5"])
def test_what_is_written_is_read(tmp_path, family):
    config = T5Config(
        vocab_size=512,
        emb_dim=32,
        num_heads=3,
        head_dim=8,
        mlp_dim=48,
        num_decoder_layers=2,
        mlp_activations=("relu",) if family == "t5" else ("gelu", "linear"),
        logits_via_embedding=family == "t5",
        relative_bias_per_layer=family == "umt5",
    )
    file = tmp_path / "config.json"
    file.write_text(json.dumps(t5_config.model_config(config, t5_families()[family], "float32", 160)))
    assert t5_config.network_config(file, t5_config.read(file)) == config


# What transformers writes of a T5 and of an mT5, and what is not there.
OLD = {
    "model_type": "t5",
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_heads": 8,
    "num_layers": 6,
}


@pytest.mark.parametrize(
    ("keys", "tied", "activations"),
    [
        ({}, True, ("relu",)),
        ({"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, False, ("gelu", "linear")),
        # A model of T5 1.1 that version 5 of transformers saved again.
        (
            {
                "feed_forward_proj": "gated-gelu",
                "tie_word_embeddings": True,
                "scale_decoder_outputs": False,
                "transformers_version": "5.23.0",
            },
            False,
            ("gelu", "linear"),
        ),
        ({"model_type": "mt5", "feed_forward_proj": "gated-gelu"}, False, ("gelu", "linear")),
    ],
)
def test_keys_that_are_missing_mean_what_transformers_takes_them_for(tmp_path, keys, tied, activations):
    config = t5_config.network_config(tmp_path, OLD | keys)
    assert (config.logits_via_embedding, config.mlp_activations) == (tied, activations)
    assert config.num_decoder_layers == 6


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"relative_attention_num_buckets": 64}, "relative_attention_num_buckets is 64; Limba's T5 has 32"),
        ({"feed_forward_proj": "gated-selu"}, "feed_forward_proj is 'gated-selu'"),
        ({"feed_forward_proj": "gelu"}, "feed_forward_proj is 'gelu'"),
        ({"num_layers": 10**7}, "num_layers is 10000000; a network has at most 10,000 layers"),
        ({"num_decoder_layers": 10**7}, "num_decoder_layers is 10000000; a network has at most"),
        ({"d_model": 10**400}, "d_model is a whole number of about 401 digits; a size of a network is at most"),
        ({"d_ff": 2**31}, "d_ff is 2147483648; a size of a network is at most 2,147,483,647"),
        ({"num_layers": [[6]]}, "num_layers is a list of 1; it is a whole number"),
        ({"pad_token_id": -1}, "pad_token_id is -1; it is an id of the vocabulary"),
        ({"decoder_start_token_id": 32128}, "decoder_start_token_id is 32128; it is an id of the vocabulary, from 0"),
        ({"decoder_start_token_id": -1}, "decoder_start_token_id is -1; it is an id of the vocabulary, from 0 to 3212"),
        ({"eos_token_id": [1, -1]}, "eos_token_id is a list of 2; Limba has one"),
        ({"dropout_rate": float("nan")}, "dropout_rate is nan; it is a number of at least 0 and below 1"),
    ],
)
def test_a_network_that_limba_does_not_have_is_named(tmp_path, keys, words):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(OLD | keys))
    with pytest.raises(ValueError, match=words):
        t5_config.network_config(file, t5_config.read(file))


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is not JSON"), ('{"model_type": "pegasus"}', "model_type is 'pegasus'"), ("[]", "holds an empty list")],
)
def test_another_file_is_named(tmp_path, text, words):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        t5_config.read(tmp_path / "config.json")
