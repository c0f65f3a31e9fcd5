"""Hugging Face's config.json and generation_config.json, written without transformers.

Version 5 of transformers forces `tie_word_embeddings` to true and takes what a file says there only for whether logits
are scaled; 4.57 reads the same key for both. So an untied model states false for `tie_word_embeddings` and for
`scale_decoder_outputs` and stores both tensors; a tied one states true for both, and its logits are scaled by
1/sqrt(d_model) in T5X, in Limba and in both versions.
"""

from typing import Any

from limba.layers import LayerNorm
from limba.network import MAX_DISTANCE, NUM_BUCKETS, T5Config

# Flax's gelu is the tanh approximation; Hugging Face means the same by "gated-gelu", but not by "gelu".
_FEED_FORWARD = {
    ("relu",): "relu",
    ("gelu",): "gelu_new",
    ("gelu", "linear"): "gated-gelu",
    ("relu", "linear"): "gated-relu",
    ("silu", "linear"): "gated-silu",
}
_SPECIAL_IDS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


def model_config(config: T5Config, dtype: str, inputs_length: int | None) -> dict[str, Any]:
    """The content of config.json.

    Args:
      config: the network.
      dtype: of the stored tensors.
      inputs_length: of the training, as information (T5's positions are relative); None leaves it out.

    Raises:
      ValueError: if Hugging Face's T5 cannot express the network.
    """
    activations = tuple(config.mlp_activations)
    if activations not in _FEED_FORWARD:
        raise ValueError(
            f"mlp_activations is {activations}, which Hugging Face's T5 does not have; it has {list(_FEED_FORWARD)}."
        )
    if min(config.num_encoder_layers, config.num_decoder_layers) < 1:
        raise ValueError(
            f"The network has {config.num_encoder_layers} encoder and {config.num_decoder_layers} decoder layers; "
            "Hugging Face's T5 keeps the position bias in the first layer of each, so both need at least 1."
        )
    tied = config.logits_via_embedding
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "use_cache": True,
        "vocab_size": config.vocab_size,
        "d_model": config.emb_dim,
        "d_kv": config.head_dim,
        "d_ff": config.mlp_dim,
        "num_heads": config.num_heads,
        "num_layers": config.num_encoder_layers,
        "num_decoder_layers": config.num_decoder_layers,
        "feed_forward_proj": _FEED_FORWARD[activations],
        "relative_attention_num_buckets": NUM_BUCKETS,
        "relative_attention_max_distance": MAX_DISTANCE,
        "layer_norm_epsilon": LayerNorm.epsilon,
        "dropout_rate": config.dropout_rate,
        "initializer_factor": 1.0,
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": tied,
        "torch_dtype": dtype,
        **({} if inputs_length is None else {"n_positions": inputs_length}),
        **_SPECIAL_IDS,
    }


def generation_config() -> dict[str, Any]:
    """The content of generation_config.json."""
    return dict(_SPECIAL_IDS)
