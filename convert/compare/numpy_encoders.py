"""The forward pass of Hugging Face's encoders in NumPy: what an export means, computed without the code that wrote it.

It reads config.json and Hugging Face's tensors, follows the papers (BERT arXiv:1810.04805, RoBERTa-PreLayerNorm
arXiv:2202.08005, MPNet arXiv:2004.09297, RoFormer arXiv:2104.09864, ModernBERT arXiv:2412.13663, DistilBERT
arXiv:1910.01108, ELECTRA arXiv:2003.10555), and shares nothing with Limba's network or tables of names. For checks, not
for speed.
"""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.special

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare.float64 import Rounding, product, rows_of

Array = np.ndarray
Config = Mapping[str, Any]

_MPNET, _ROFORMER, _MODERNBERT, _DISTILBERT, _ELECTRA = "mpnet", "roformer", "modernbert", "distilbert", "electra"
# DistilBERT's names of BERT's modules, and its keys of BERT's.
_MODULES_OF_DISTILBERT = {
    ".transformer.layer.": ".encoder.layer.",
    **{f".attention.{name[0]}_lin.": f".attention.self.{name}." for name in ("query", "key", "value")},
    ".attention.out_lin.": ".attention.output.dense.",
    ".sa_layer_norm.": ".attention.output.LayerNorm.",
    ".ffn.lin1.": ".intermediate.dense.",
    ".ffn.lin2.": ".output.dense.",
    ".output_layer_norm.": ".output.LayerNorm.",
    "vocab_transform.": "cls.predictions.transform.dense.",
    "vocab_layer_norm.": "cls.predictions.transform.LayerNorm.",
    "vocab_projector.": "cls.predictions.",
}
_KEYS_OF_DISTILBERT = {"n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "activation": "hidden_act"}
_EMBEDDING = ".embeddings.word_embeddings.weight"
# Of their tables of positions, the first token takes the row after padding's id.
_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "roberta-prelayernorm", _MPNET)


class Weights:
    """The tensors of a PyTorch state dict in float64, and the rounding of what is computed with them."""

    def __init__(self, tensors: Mapping[str, SavedTensor], rounding: Rounding):
        self._tensors = tensors
        self.rounding = rounding

    @property
    def prefix(self) -> str:
        """What the names of the tensors of BERT or a relative begin with."""
        return next(name.removesuffix(_EMBEDDING) for name in self._tensors if name.endswith(_EMBEDDING))

    def __getitem__(self, name: str) -> Array:
        return np.asarray(self._tensors[name]).astype(np.float64)

    def rows(self, name: str, ids: Array) -> Array:
        return rows_of(self._tensors[name], ids)

    def bias(self, module: str) -> Array | float:
        return self[f"{module}.bias"] if f"{module}.bias" in self._tensors else 0.0

    def attend(self, table: str, x: Array) -> Array:
        return product(x, self._tensors[table])

    def product(self, module: str, x: Array) -> Array:
        return self.rounding(self.attend(f"{module}.weight", x) + self.bias(module))

    def norm(self, module: str, x: Array, epsilon: float) -> Array:
        centered = x - x.mean(-1, keepdims=True)
        variance = np.square(centered).mean(-1, keepdims=True)
        return self.rounding(centered / np.sqrt(variance + epsilon) * self[f"{module}.weight"] + self.bias(module))


def logits(
    tensors: Mapping[str, SavedTensor], config: Config, input_ids: Array, token_type_ids: Array, rounding: Rounding
) -> Array:
    """Float64 logits, of a masked language model where `architectures` says no other class.

    They are `[batch, length, vocab]`, of a classifier `[batch, labels]` or `[batch, length, labels]`; both ids are
    `[batch, length]`, and `pad_token_id` is padding. Those of replaced tokens are `[batch, length]`.
    """
    tensors, config = _by_names_of_bert(tensors, config)
    weights = Weights(tensors, rounding)
    x, embedding = _states(weights, config, input_ids, token_type_ids)
    name = (config.get("architectures") or [""])[0]
    if name == "ElectraForPreTraining":
        x = ACTIVATIONS[config["hidden_act"]](weights.product("discriminator_predictions.dense", x))
        return weights.product("discriminator_predictions.dense_prediction", x)[..., 0]
    if name.endswith("ForTokenClassification"):
        x = _head_of_modernbert(weights, config, x) if config["model_type"] == _MODERNBERT else x
        return weights.product("classifier", x)
    if name.endswith("ForSequenceClassification"):
        return _logits_of_rows(weights, config, x, input_ids != config["pad_token_id"])
    if config["model_type"] == _MODERNBERT:
        return weights.attend(embedding, _head_of_modernbert(weights, config, x)) + weights.bias("decoder")
    if config["model_type"] == _ELECTRA:
        head, dense, activation = "generator_lm_head", "generator_predictions.dense", "gelu"
        norm = "generator_predictions.LayerNorm"
    elif config["model_type"] in _AFTER_PADDING:
        head, dense, norm, activation = "lm_head", "lm_head.dense", "lm_head.layer_norm", "gelu"
    else:
        head, activation = "cls.predictions", config["hidden_act"]
        dense, norm = f"{head}.transform.dense", f"{head}.transform.LayerNorm"
    x = weights.norm(norm, ACTIVATIONS[activation](weights.product(dense, x)), config["layer_norm_eps"])
    return weights.attend(embedding, x) + weights.bias(head)


def pair_logits(
    tensors: Mapping[str, SavedTensor], config: Config, input_ids: Array, token_type_ids: Array, rounding: Rounding
) -> Array:
    """Float64 logits `[batch, 2]` of BERT's next sentence: it follows, or it does not. For the ids see `logits`."""
    weights = Weights(tensors, rounding)
    x, _ = _states(weights, config, input_ids, token_type_ids)
    return weights.product("cls.seq_relationship", np.tanh(weights.product("bert.pooler.dense", x[:, 0])))


def hidden_states(
    tensors: Mapping[str, SavedTensor], config: Config, input_ids: Array, token_type_ids: Array, rounding: Rounding
) -> Array:
    """Float64 outputs `[batch, length, embed]` of the encoder; for the ids see `logits`."""
    tensors, config = _by_names_of_bert(tensors, config)
    return _states(Weights(tensors, rounding), config, input_ids, token_type_ids)[0]


def _by_names_of_bert(tensors: Mapping[str, SavedTensor], config: Config) -> tuple[Mapping[str, SavedTensor], Config]:
    """A DistilBERT with BERT's names of tensors and keys; others as they are."""
    if config["model_type"] != _DISTILBERT:
        return tensors, config
    renamed = {}
    for name, tensor in tensors.items():
        for theirs, of_bert in _MODULES_OF_DISTILBERT.items():
            name = name.replace(theirs, of_bert)
        renamed[name] = tensor
    keys = {_KEYS_OF_DISTILBERT.get(key, key): x for key, x in config.items()}
    return renamed, keys | {"layer_norm_eps": 1e-12}


def _states(weights: Weights, config: Config, input_ids: Array, token_type_ids: Array) -> tuple[Array, str]:
    """The encoder's outputs, and the name of the embedding."""
    visible = (input_ids != config["pad_token_id"])[:, None, None, :]
    if config["model_type"] == _MODERNBERT:
        return _modernbert(weights, config, input_ids, visible)
    return _bert(weights, config, input_ids, token_type_ids, visible)


def _head_of_modernbert(weights: Weights, config: Config, x: Array) -> Array:
    x = ACTIVATIONS[config["classifier_activation"]](weights.product("head.dense", x))
    return weights.norm("head.norm", x, config["norm_eps"])


def _logits_of_rows(weights: Weights, config: Config, x: Array, is_token: Array) -> Array:
    kind, first = config["model_type"], x[:, 0]
    if kind == _MODERNBERT:
        count = is_token.sum(1, keepdims=True)
        row = (x * is_token[..., None]).sum(1) / count if config["classifier_pooling"] == "mean" else first
        return weights.product("classifier", _head_of_modernbert(weights, config, row))
    if kind == "bert":
        return weights.product("classifier", np.tanh(weights.product("bert.pooler.dense", first)))
    if kind == _DISTILBERT:
        return weights.product("classifier", np.maximum(weights.product("pre_classifier", first), 0))
    activation = {_ROFORMER: ACTIVATIONS[config["hidden_act"]], _ELECTRA: _gelu}.get(kind, np.tanh)
    return weights.product("classifier.out_proj", activation(weights.product("classifier.dense", first)))


# -------------------------------------------------- BERT and relatives ----------------------------------------------


def _bert(weights: Weights, config: Config, input_ids: Array, types: Array, visible: Array) -> tuple[Array, str]:
    """What the encoder gives, and the name of the embedding."""
    kind, epsilon = config["model_type"], config["layer_norm_eps"]
    prefix, is_pre = weights.prefix, kind == "roberta-prelayernorm"
    tables = f"{prefix}.embeddings"
    embedding = f"{tables}.word_embeddings.weight"
    x = weights.rows(embedding, input_ids)
    length = input_ids.shape[1]
    positions = np.arange(length)[None]
    if kind in _AFTER_PADDING:
        real = input_ids != config["pad_token_id"]
        positions = np.cumsum(real, axis=1) * real + config["pad_token_id"]
    relative = config.get("position_embedding_type", "absolute")
    if kind != _ROFORMER and relative == "absolute":
        x = x + weights.rows(f"{tables}.position_embeddings.weight", positions)
    if kind not in (_MPNET, _DISTILBERT):
        x = x + weights.rows(f"{tables}.token_type_embeddings.weight", types)
    x = weights.norm(f"{tables}.LayerNorm", weights.rounding(x), epsilon)
    if kind in (_ROFORMER, _ELECTRA) and config["embedding_size"] != config["hidden_size"]:
        x = weights.product(f"{prefix}.embeddings_project", x)
    bias = _buckets(weights[f"{prefix}.encoder.relative_attention_bias.weight"], length) if kind == _MPNET else None
    heads = config["num_attention_heads"]
    turn = functools.partial(turned, base=10_000.0, interleaved=True) if kind == _ROFORMER else None
    for i in range(config["num_hidden_layers"]):
        layer = f"{prefix}.encoder.layer.{i}"
        inner, names, out = f"{layer}.attention.self", ("query", "key", "value"), f"{layer}.attention.output.dense"
        norms = (f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm")
        if kind == _MPNET:
            inner, names, out = f"{layer}.attention.attn", ("q", "k", "v"), f"{layer}.attention.attn.o"
            norms = (f"{layer}.attention.LayerNorm", norms[1])
        if is_pre:
            norms = (f"{layer}.attention.LayerNorm", f"{layer}.intermediate.LayerNorm")
        table = None if relative == "absolute" else weights[f"{inner}.distance_embedding.weight"]
        both = relative == "relative_key_query"

        y = weights.norm(norms[0], x, epsilon) if is_pre else x
        query, key, value = (by_head(weights.product(f"{inner}.{name}", y), heads) for name in names)
        added = _distances(table, query, key, both)
        attended = attend(query, key, value, visible, bias, turn, added, weights.rounding)
        x = weights.rounding(x + weights.product(out, attended))
        x = x if is_pre else weights.norm(norms[0], x, epsilon)
        y = weights.norm(norms[1], x, epsilon) if is_pre else x
        hidden = ACTIVATIONS[config["hidden_act"]](weights.product(f"{layer}.intermediate.dense", y))
        x = weights.rounding(x + weights.product(f"{layer}.output.dense", weights.rounding(hidden)))
        x = x if is_pre else weights.norm(norms[1], x, epsilon)
    return (weights.norm(f"{prefix}.LayerNorm", x, epsilon) if is_pre else x), embedding


def _buckets(table: Array, length: int) -> Array:
    """`[1, heads, length, length]` from T5's table `[32, heads]`, with distances up to 128."""
    distances = np.arange(length) - np.arange(length)[:, None]
    far = np.log(np.maximum(np.abs(distances), 1).astype(np.float32) / 8) / np.float32(math.log(128 / 8)) * 8
    buckets = np.where(np.abs(distances) < 8, np.abs(distances), np.minimum(8 + far.astype(int), 15))
    return table[buckets + 16 * (distances > 0)].transpose(2, 0, 1)[None]


def _distances(table: Array | None, query: Array, key: Array, both: bool) -> Array | float:
    """What relative_key adds to the products; the middle row of the table is for a query at the key's own place."""
    if table is None:
        return 0.0
    length = query.shape[2]
    distances = np.arange(length)[:, None] - np.arange(length) + table.shape[0] // 2
    added = np.einsum("bhld,lrd->bhlr", query, table[distances])
    return added + np.einsum("bhrd,lrd->bhlr", key, table[distances]) if both else added


# ------------------------------------------------------ ModernBERT --------------------------------------------------


def _modernbert(weights: Weights, config: Config, input_ids: Array, visible: Array) -> tuple[Array, str]:
    """As `_bert`."""
    embedding, epsilon = "model.embeddings.tok_embeddings.weight", config["norm_eps"]
    x = weights.norm("model.embeddings.norm", weights.rows(embedding, input_ids), epsilon)
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
    return weights.norm("model.final_norm", x, epsilon), embedding


# ------------------------------------------------------ attention ---------------------------------------------------


def by_head(x: Array, num_heads: int) -> Array:
    """`[batch, length, embed] -> [batch, heads, length, kv]`."""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)


def attend(
    query: Array,
    key: Array,
    value: Array,
    visible: Array,
    bias: Array | None,
    turn: Callable[[Array], Array] | None,
    added: Array | float,
    rounding: Rounding,
) -> Array:
    """`[batch, length, embed]`; `added` to the products before their division by sqrt(kv), `bias` after it."""
    if turn is not None:
        query, key = rounding(turn(query)), rounding(turn(key))
    scores = rounding((query @ key.transpose(0, 1, 3, 2) + added) / math.sqrt(query.shape[-1]))
    # Finite: padding may see nothing within its window, and must not become NaN.
    scores = np.where(visible, scores if bias is None else scores + bias, -1e30)
    exponentials = rounding(np.exp(scores - scores.max(-1, keepdims=True)))
    attended = exponentials / exponentials.sum(-1, keepdims=True) @ value
    return rounding(attended.transpose(0, 2, 1, 3).reshape(attended.shape[0], attended.shape[2], -1))


def turned(x: Array, base: float, interleaved: bool = False, speed: float = 1.0) -> Array:
    """Rotary positions of `[batch, heads, length, kv]`; `speed` multiplies all angles."""
    pairs = x.shape[-1] // 2
    angles = np.arange(x.shape[2])[:, None] * speed * base ** (-np.arange(pairs) / pairs)
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :pairs], x[..., pairs:])
    turned = (first * cos - second * sin, second * cos + first * sin)
    return np.stack(turned, -1).reshape(x.shape) if interleaved else np.concatenate(turned, -1)


def _gelu(x: Array) -> Array:
    return x * (1 + scipy.special.erf(x / math.sqrt(2))) / 2


def _gelu_by_tanh(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": _gelu,
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast"), _gelu_by_tanh),
    "relu": lambda x: np.maximum(x, 0),
    **dict.fromkeys(("silu", "swish"), lambda x: x / 2 * (1 + np.tanh(x / 2))),
}
