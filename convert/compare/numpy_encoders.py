"""The forward pass of Hugging Face's encoders in NumPy: what an export means, computed without the code that wrote it.

It reads config.json and Hugging Face's tensors, follows the papers (BERT arXiv:1810.04805, RoBERTa-PreLayerNorm
arXiv:2202.08005), and shares nothing with Limba's network or tables of names. For checks,
not for speed.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.special

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare.float64 import Rounding, product, rows_of

Array = np.ndarray
Config = Mapping[str, Any]

_EMBEDDING = ".embeddings.word_embeddings.weight"


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


OfRows = Callable[[Weights, Array], Array]


def logits(
    tensors: Mapping[str, SavedTensor], config: Config, input_ids: Array, token_type_ids: Array, rounding: Rounding
) -> Array:
    """Float64 logits, of a masked language model where `architectures` says no other class.

    They are `[batch, length, vocab]`, of a classifier `[batch, labels]` or `[batch, length, labels]`; both ids are
    `[batch, length]`, and `pad_token_id` is padding.
    """
    weights = Weights(tensors, rounding)
    return logits_of(_layout(config), weights, config, input_ids, token_type_ids)


def pair_logits(
    tensors: Mapping[str, SavedTensor], config: Config, input_ids: Array, token_type_ids: Array, rounding: Rounding
) -> Array:
    """Float64 logits `[batch, 2]` of BERT's next sentence: it follows, or it does not. For the ids see `logits`."""
    weights = Weights(tensors, rounding)
    x = states_of(Layout(), weights, config, input_ids, token_type_ids)
    return weights.product("cls.seq_relationship", np.tanh(weights.product("bert.pooler.dense", x[:, 0])))


def hidden_states(
    tensors: Mapping[str, SavedTensor], config: Config, input_ids: Array, token_type_ids: Array, rounding: Rounding
) -> Array:
    """Float64 outputs `[batch, length, embed]` of the encoder; for the ids see `logits`."""
    weights = Weights(tensors, rounding)
    return states_of(_layout(config), weights, config, input_ids, token_type_ids)


def class_of(config: Config) -> str:
    """Hugging Face's class, "" where config.json says none."""
    return (config.get("architectures") or [""])[0]


# -------------------------------------------------- BERT and relatives ----------------------------------------------


def by_dense(
    activation: Callable[[Array], Array], dense: str = "classifier.dense", out: str = "classifier.out_proj"
) -> OfRows:
    """Logits of rows by a product, an activation and another product."""
    return lambda weights, first: weights.product(out, activation(weights.product(dense, first)))


_OF_POOLER = by_dense(np.tanh, "bert.pooler.dense", "classifier")


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a relative of BERT has; the values are BERT's.

    Attributes:
      after_padding: whether the first token takes the row of the table of positions after padding's id.
      has_positions, has_types: whether it has these tables.
      has_projection: whether a product makes the width of the layers of that of the tables, where they differ.
      is_pre: whether its norms stand before attention and MLP.
      attention: of a layer, the modules of query, key, value and output.
      norms: of a layer, the modules of the norms of attention and MLP.
      head: of a masked language model, the modules of its bias, product and norm.
      head_activation: of that head; "" is the MLP's.
      of_rows: logits of rows, of the weights and the outputs of their first tokens.
      bias: added to the products of queries and keys after their division by sqrt(kv), of the weights and the length.
      turn: of queries and keys.
    """

    after_padding: bool = False
    has_positions: bool = True
    has_types: bool = True
    has_projection: bool = False
    is_pre: bool = False
    attention: tuple[str, ...] = (*(f"attention.self.{x}" for x in ("query", "key", "value")), "attention.output.dense")
    norms: tuple[str, str] = ("attention.output.LayerNorm", "output.LayerNorm")
    head: tuple[str, ...] = tuple(f"cls.predictions{x}" for x in ("", ".transform.dense", ".transform.LayerNorm"))
    head_activation: str = ""
    of_rows: OfRows = _OF_POOLER
    bias: Callable[[Weights, int], Array | None] = lambda weights, length: None
    turn: Callable[[Array], Array] | None = None


ROBERTA = Layout(
    after_padding=True,
    head=("lm_head", "lm_head.dense", "lm_head.layer_norm"),
    head_activation="gelu",
    of_rows=by_dense(np.tanh),
)
_LAYOUTS = {
    "bert": Layout(),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
    "roberta-prelayernorm": dataclasses.replace(
        ROBERTA, is_pre=True, norms=("attention.LayerNorm", "intermediate.LayerNorm")
    ),
}


def _layout(config: Config) -> Layout:
    """That of the family; of one that a package adds, BERT's."""
    return _LAYOUTS.get(config["model_type"], Layout())


def logits_of(layout: Layout, weights: Weights, config: Config, input_ids: Array, token_type_ids: Array) -> Array:
    """`logits` of a relative of BERT."""
    x, name = states_of(layout, weights, config, input_ids, token_type_ids), class_of(config)
    if name.endswith("ForTokenClassification"):
        return weights.product("classifier", x)
    if name.endswith("ForSequenceClassification"):
        return layout.of_rows(weights, x[:, 0])
    head, dense, norm = layout.head
    activation = ACTIVATIONS[layout.head_activation or config["hidden_act"]]
    x = weights.norm(norm, activation(weights.product(dense, x)), config["layer_norm_eps"])
    return weights.attend(f"{weights.prefix}{_EMBEDDING}", x) + weights.bias(head)


def states_of(layout: Layout, weights: Weights, config: Config, input_ids: Array, token_type_ids: Array) -> Array:
    """`hidden_states` of a relative of BERT."""
    epsilon, prefix, is_pre = config["layer_norm_eps"], weights.prefix, layout.is_pre
    tables = f"{prefix}.embeddings"
    x = weights.rows(f"{prefix}{_EMBEDDING}", input_ids)
    length, real = input_ids.shape[1], input_ids != config["pad_token_id"]
    relative = config.get("position_embedding_type", "absolute")
    if layout.has_positions and relative == "absolute":
        positions = np.arange(length)[None]
        if layout.after_padding:
            positions = np.cumsum(real, axis=1) * real + config["pad_token_id"]
        x = x + weights.rows(f"{tables}.position_embeddings.weight", positions)
    if layout.has_types:
        x = x + weights.rows(f"{tables}.token_type_embeddings.weight", token_type_ids)
    x = weights.norm(f"{tables}.LayerNorm", weights.rounding(x), epsilon)
    if layout.has_projection and config["embedding_size"] != config["hidden_size"]:
        x = weights.product(f"{prefix}.embeddings_project", x)
    bias, heads = layout.bias(weights, length), config["num_attention_heads"]
    for i in range(config["num_hidden_layers"]):
        layer = f"{prefix}.encoder.layer.{i}"
        *projections, out = (f"{layer}.{name}" for name in layout.attention)
        norms = [f"{layer}.{name}" for name in layout.norms]
        table = None if relative == "absolute" else weights[f"{layer}.attention.self.distance_embedding.weight"]

        y = weights.norm(norms[0], x, epsilon) if is_pre else x
        query, key, value = (by_head(weights.product(name, y), heads) for name in projections)
        added = _distances(table, query, key, both=relative == "relative_key_query")
        visible = real[:, None, None, :]
        attended = attend(query, key, value, visible, bias, layout.turn, added, weights.rounding)
        x = weights.rounding(x + weights.product(out, attended))
        x = x if is_pre else weights.norm(norms[0], x, epsilon)
        y = weights.norm(norms[1], x, epsilon) if is_pre else x
        hidden = ACTIVATIONS[config["hidden_act"]](weights.product(f"{layer}.intermediate.dense", y))
        x = weights.rounding(x + weights.product(f"{layer}.output.dense", weights.rounding(hidden)))
        x = x if is_pre else weights.norm(norms[1], x, epsilon)
    return weights.norm(f"{prefix}.LayerNorm", x, epsilon) if is_pre else x


def _distances(table: Array | None, query: Array, key: Array, both: bool) -> Array | float:
    """What relative_key adds to the products; the middle row of the table is for a query at the key's own place."""
    if table is None:
        return 0.0
    length = query.shape[2]
    distances = np.arange(length)[:, None] - np.arange(length) + table.shape[0] // 2
    added = np.einsum("bhld,lrd->bhlr", query, table[distances])
    return added + np.einsum("bhrd,lrd->bhlr", key, table[distances]) if both else added


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
