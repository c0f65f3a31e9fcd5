"""The forward pass of EuroBERT, NomicBERT and DeBERTa-v3 in NumPy: what an export means, computed without the code that
wrote it.

It reads config.json and Hugging Face's tensors, follows the papers (EuroBERT arXiv:2503.05500, NomicBERT
arXiv:2402.01613, DeBERTa arXiv:2006.03654), and shares nothing with Limba's network or tables of names. For checks, not
for speed; see `convert.compare.numpy_encoders`, which has the relatives of BERT.
"""

import functools
import math
from collections.abc import Mapping

import numpy as np

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare.float64 import Rounding
from limba.convert.compare.numpy_encoders import ACTIVATIONS, Array, Config, Weights, attend, by_head, turned

_EUROBERT, _NOMIC, _DEBERTA = "eurobert", "nomic_bert", "deberta-v2"


def logits(
    tensors: Mapping[str, SavedTensor], config: Config, input_ids: Array, token_type_ids: Array, rounding: Rounding
) -> Array:
    """See `numpy_encoders.logits`."""
    weights, kind = Weights(tensors, rounding), config["model_type"]
    x, embedding = _states(weights, config, input_ids, token_type_ids)
    name = (config.get("architectures") or [""])[0]
    if name.endswith("ForTokenClassification"):
        return weights.product("classifier", x)
    if name.endswith("ForSequenceClassification"):
        return _logits_of_rows(weights, config, x, input_ids != config["pad_token_id"])
    if kind == _EUROBERT:
        is_tied = config.get("tie_word_embeddings")
        return weights.attend(embedding if is_tied else "lm_head.weight", x) + weights.bias("lm_head")
    head, epsilon = "cls.predictions", config["layer_norm_eps"]
    x = ACTIVATIONS[config["hidden_act"]](weights.product(f"{head}.transform.dense", x))
    x = weights.norm(f"{head}.transform.{'layer_norm' if kind == _NOMIC else 'LayerNorm'}", x, epsilon)
    return weights.attend(embedding, x) + weights.bias(head)


def hidden_states(
    tensors: Mapping[str, SavedTensor], config: Config, input_ids: Array, token_type_ids: Array, rounding: Rounding
) -> Array:
    """See `numpy_encoders.hidden_states`."""
    return _states(Weights(tensors, rounding), config, input_ids, token_type_ids)[0]


def _states(weights: Weights, config: Config, input_ids: Array, token_type_ids: Array) -> tuple[Array, str]:
    """The encoder's outputs, and the name of the embedding."""
    visible = (input_ids != config["pad_token_id"])[:, None, None, :]
    if config["model_type"] == _EUROBERT:
        return _eurobert(weights, config, input_ids, visible)
    compute = _nomic if config["model_type"] == _NOMIC else _deberta
    return compute(weights, config, input_ids, token_type_ids, visible)


def _logits_of_rows(weights: Weights, config: Config, x: Array, is_token: Array) -> Array:
    kind, first = config["model_type"], x[:, 0]
    if kind == _EUROBERT:
        return _logits_of_eurobert(weights, config["classifier_pooling"], x, is_token)
    if kind == _DEBERTA:
        activation = ACTIVATIONS[config["pooler_hidden_act"]]
        return weights.product("classifier", activation(weights.product("pooler.dense", first)))
    return weights.product("classifier", np.tanh(weights.product("nomic_bert.pooler.dense", first)))


def _rms_norm(weights: Weights, module: str, x: Array, epsilon: float) -> Array:
    """Without a mean that is taken off (arXiv:1910.07467)."""
    square = np.square(x).mean(-1, keepdims=True)
    return weights.rounding(x / np.sqrt(square + epsilon) * weights[f"{module}.weight"])


# ------------------------------------------------- EuroBERT and NomicBERT --------------------------------------------


def _eurobert(weights: Weights, config: Config, input_ids: Array, visible: Array) -> tuple[Array, str]:
    """What the encoder gives, and the name of the embedding."""
    embedding, epsilon = "model.embed_tokens.weight", config["rms_norm_eps"]
    x = weights.rows(embedding, input_ids)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        y = _rms_norm(weights, f"{layer}.input_layernorm", x, epsilon)
        x = weights.rounding(x + _projected_attention(weights, config, layer, y, visible))
        y = _rms_norm(weights, f"{layer}.post_attention_layernorm", x, epsilon)
        x = weights.rounding(x + _gated_mlp(weights, config, layer, y))
    return _rms_norm(weights, "model.norm", x, epsilon), embedding


def _nomic(weights: Weights, config: Config, input_ids: Array, types: Array, visible: Array) -> tuple[Array, str]:
    """What the encoder gives, and the name of the embedding."""
    tables, epsilon = "nomic_bert.embeddings", config["layer_norm_eps"]
    embedding = f"{tables}.word_embeddings.weight"
    x = weights.rows(embedding, input_ids) + weights.rows(f"{tables}.token_type_embeddings.weight", types)
    x = weights.norm(f"{tables}.LayerNorm", weights.rounding(x), epsilon)
    for i in range(config["num_hidden_layers"]):
        layer = f"nomic_bert.layers.{i}"
        x = weights.rounding(x + _projected_attention(weights, config, layer, x, visible))
        x = weights.norm(f"{layer}.post_attention_layernorm", x, epsilon)
        x = weights.rounding(x + _gated_mlp(weights, config, layer, x))
        x = weights.norm(f"{layer}.post_mlp_layernorm", x, epsilon)
    return x, embedding


def _projected_attention(weights: Weights, config: Config, layer: str, x: Array, visible: Array) -> Array:
    """Rotary positions in halves; a head of keys and values serves as many heads of queries."""
    given = config.get("rope_parameters") or {}
    turn = functools.partial(turned, base=given.get("rope_theta") or config["rope_theta"], interleaved=False)
    heads = config["num_attention_heads"]
    of_keys = config.get("num_key_value_heads") or heads
    query = by_head(weights.product(f"{layer}.self_attn.q_proj", x), heads)
    key, value = (
        np.repeat(by_head(weights.product(f"{layer}.self_attn.{name}_proj", x), of_keys), heads // of_keys, axis=1)
        for name in ("k", "v")
    )
    attended = attend(query, key, value, visible, None, turn, 0.0, weights.rounding)
    return weights.product(f"{layer}.self_attn.o_proj", attended)


def _gated_mlp(weights: Weights, config: Config, layer: str, x: Array) -> Array:
    active = ACTIVATIONS[config["hidden_act"]](weights.product(f"{layer}.mlp.gate_proj", x))
    hidden = weights.rounding(active * weights.product(f"{layer}.mlp.up_proj", x))
    return weights.product(f"{layer}.mlp.down_proj", hidden)


def _logits_of_eurobert(weights: Weights, pooling: str, x: Array, is_token: Array) -> Array:
    def mean(y: Array) -> Array:
        return (y * is_token[..., None]).sum(1) / is_token.sum(1, keepdims=True)

    if pooling != "late":
        x = x[:, 0] if pooling == "bos" else mean(x)
    logits = weights.product("classifier", ACTIVATIONS["gelu"](weights.product("dense", x)))
    return mean(logits) if pooling == "late" else logits


# -------------------------------------------------------- DeBERTa ---------------------------------------------------


def _deberta(weights: Weights, config: Config, input_ids: Array, types: Array, visible: Array) -> tuple[Array, str]:
    """What the encoder gives, and the name of the embedding."""
    embedding, epsilon = "deberta.embeddings.word_embeddings.weight", config["layer_norm_eps"]
    x = weights.rows(embedding, input_ids)
    if config["type_vocab_size"]:
        x = x + weights.rows("deberta.embeddings.token_type_embeddings.weight", types)
    x = weights.norm("deberta.embeddings.LayerNorm", weights.rounding(x), epsilon)
    table = weights.norm("deberta.encoder.LayerNorm", weights["deberta.encoder.rel_embeddings.weight"], epsilon)
    heads, span, length = config["num_attention_heads"], config["position_buckets"], input_ids.shape[1]
    places = np.arange(length)
    most = config["max_relative_positions"]
    most = config["max_position_embeddings"] if most < 1 else most
    rows = np.clip(_log_buckets(places[:, None] - places, span, most) + span, 0, 2 * span - 1)
    for i in range(config["num_hidden_layers"]):
        layer = f"deberta.encoder.layer.{i}"
        inner, out = f"{layer}.attention.self", f"{layer}.attention.output"
        names = [f"{inner}.{name}_proj" for name in ("query", "key", "value")]
        query, key, value = (by_head(weights.product(name, x), heads) for name in names)
        of_query, of_key = (by_head(weights.product(name, table)[None], heads)[0] for name in names[:2])
        added = np.einsum("bhqd,hqkd->bhqk", query, of_key[:, rows])
        added = added + np.einsum("bhkd,hqkd->bhqk", key, of_query[:, rows])
        # Three products in place of one: their sum is divided by the root of three times the size.
        three = math.sqrt(3)
        attended = attend(query / three, key, value, visible, None, None, added / three, weights.rounding)
        x = weights.norm(f"{out}.LayerNorm", weights.rounding(x + weights.product(f"{out}.dense", attended)), epsilon)
        hidden = weights.rounding(ACTIVATIONS[config["hidden_act"]](weights.product(f"{layer}.intermediate.dense", x)))
        y = weights.rounding(x + weights.product(f"{layer}.output.dense", hidden))
        x = weights.norm(f"{layer}.output.LayerNorm", y, epsilon)
    return x, embedding


def _log_buckets(distances: Array, span: int, most: int) -> Array:
    """Distances up to half of the span, and what grows with their logarithm: `most - 1` is `span - 1`."""
    middle = span // 2
    size = np.maximum(np.abs(distances), middle).astype(np.float32)
    far = np.ceil(np.log(size / np.float32(middle)) / np.log(np.float32((most - 1) / middle)) * (middle - 1))
    return np.where(np.abs(distances) <= middle, distances, np.sign(distances) * (far.astype(int) + middle))
