"""The forward pass of ModernBERT in NumPy: what an export means, computed without the code that wrote it.

It reads config.json and Hugging Face's tensors, follows the paper (arXiv:2412.13663), and shares nothing with Limba's
network or tables of names. For checks, not for speed; see `convert.compare.numpy_encoders`.
"""

import functools
from collections.abc import Mapping

import numpy as np

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare.float64 import Rounding
from limba.convert.compare.numpy_encoders import (
    ACTIVATIONS,
    Array,
    Config,
    Weights,
    attend,
    by_head,
    class_of,
    turned,
)

_EMBEDDING = "model.embeddings.tok_embeddings.weight"


def logits(
    tensors: Mapping[str, SavedTensor], config: Config, input_ids: Array, token_type_ids: Array, rounding: Rounding
) -> Array:
    """See `numpy_encoders.logits`."""
    weights, name = Weights(tensors, rounding), class_of(config)
    x = _states(weights, config, input_ids)
    if name.endswith("ForSequenceClassification"):
        is_token = input_ids != config["pad_token_id"]
        mean = (x * is_token[..., None]).sum(1) / is_token.sum(1, keepdims=True)
        x = mean if config["classifier_pooling"] == "mean" else x[:, 0]
    x = ACTIVATIONS[config["classifier_activation"]](weights.product("head.dense", x))
    x = weights.norm("head.norm", x, config["norm_eps"])
    if name.endswith("Classification"):
        return weights.product("classifier", x)
    return weights.attend(_EMBEDDING, x) + weights.bias("decoder")


def hidden_states(
    tensors: Mapping[str, SavedTensor], config: Config, input_ids: Array, token_type_ids: Array, rounding: Rounding
) -> Array:
    """See `numpy_encoders.hidden_states`."""
    return _states(Weights(tensors, rounding), config, input_ids)


def _states(weights: Weights, config: Config, input_ids: Array) -> Array:
    epsilon, visible = config["norm_eps"], (input_ids != config["pad_token_id"])[:, None, None, :]
    x = weights.norm("model.embeddings.norm", weights.rows(_EMBEDDING, input_ids), epsilon)
    places = np.arange(input_ids.shape[1])
    near = np.abs(places[:, None] - places) <= config["local_attention"] // 2
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        is_global = i % config["global_attn_every_n_layers"] == 0
        base = config["global_rope_theta" if is_global else "local_rope_theta"]
        turn = functools.partial(turned, base=base, interleaved=False)
        y = weights.norm(f"{layer}.attn_norm", x, epsilon) if i else x
        joined = np.split(weights.product(f"{layer}.attn.Wqkv", y), 3, axis=-1)
        query, key, value = (by_head(part, config["num_attention_heads"]) for part in joined)
        seen = visible if is_global else visible & near
        attended = attend(query, key, value, seen, None, turn, 0.0, weights.rounding)
        x = weights.rounding(x + weights.product(f"{layer}.attn.Wo", attended))
        y = weights.norm(f"{layer}.mlp_norm", x, epsilon)
        active, gate = np.split(weights.product(f"{layer}.mlp.Wi", y), 2, axis=-1)
        hidden = weights.rounding(ACTIVATIONS[config["hidden_activation"]](active) * gate)
        x = weights.rounding(x + weights.product(f"{layer}.mlp.Wo", hidden))
    return weights.norm("model.final_norm", x, epsilon)
