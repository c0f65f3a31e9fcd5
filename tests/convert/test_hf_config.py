"""config.json says what transformers needs, and nothing that it would misread."""

import pytest

from convert import hf_config
from limba.network import T5Config


def test_sizes_and_special_ids():
    config = T5Config(vocab_size=512, emb_dim=32, num_heads=3, head_dim=8, mlp_dim=48, num_decoder_layers=2)
    written = hf_config.model_config(config, "float32", 160)
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
    written = hf_config.model_config(T5Config(vocab_size=8, logits_via_embedding=tied), "float32", None)
    assert written["tie_word_embeddings"] is tied
    assert written["scale_decoder_outputs"] is tied
    assert "n_positions" not in written


def test_a_decoder_without_layers_is_refused():
    with pytest.raises(ValueError, match="6 encoder and 0 decoder layers"):
        hf_config.model_config(T5Config(vocab_size=8, num_decoder_layers=0), "float32", None)
