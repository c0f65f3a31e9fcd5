"""The forward pass of Hugging Face's T5 in NumPy: what an export means, computed without the code that wrote it.

It reads config.json and Hugging Face's tensors, follows T5's definition (arXiv:1910.10683 and, for gated feed-forward
blocks, arXiv:2002.05202), and shares nothing with Limba's network or table of names. For checks, not for speed.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.special

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.compare.float64 import Rounding, product, rows_of
from limba.convert.tensors.tensor_parts import transposed

Array = np.ndarray
Config = Mapping[str, Any]


class TorchWeights:
    """The tensors of a PyTorch state dict, `module.weight`; its kernels are `[out, in]`."""

    def __init__(self, tensors: Mapping[str, SavedTensor]):
        self._tensors = tensors

    def _name(self, module: str, leaf: str) -> str:
        return f"{module}.weight"

    def tensor(self, module: str, leaf: str) -> SavedTensor:
        return self._tensors[self._name(module, leaf)]

    def has_embedding(self, module: str) -> bool:
        return self._name(module, "embedding") in self._tensors

    def kernel(self, module: str) -> SavedTensor:  # [out, in]
        return self.tensor(module, "kernel")

    def bias(self, module: str) -> Array:  # [out]
        return np.asarray(self._tensors[f"{module}.bias"]).astype(np.float64)

    def embedding(self, module: str) -> SavedTensor:  # [rows, features]
        return self.tensor(module, "embedding")

    def scale(self, module: str) -> Array:  # [features]
        return np.asarray(self.tensor(module, "weight")).astype(np.float64)


class FlaxWeights(TorchWeights):
    """The tensors of a Flax tree, `module/kernel`, `module/embedding`, `module/weight`; its kernels are `[in, out]`."""

    def _name(self, module: str, leaf: str) -> str:
        return f"{module.replace('.', '/')}/{leaf}"

    def kernel(self, module: str) -> SavedTensor:
        return transposed(self.tensor(module, "kernel"))


def logits(
    weights: TorchWeights,
    config: Config,
    input_ids: Array,
    decoder_input_ids: Array,
    rounding: Rounding,
    network_class: type["Network"] | None = None,
) -> Array:
    """Float64 logits `[batch, targets, vocab]`; both ids are `[batch, length]`, and `pad_token_id` is padding."""
    network = (network_class or Network)(weights, config, rounding)
    visible = (input_ids != config["pad_token_id"])[:, None, None, :]
    causal = np.tril(np.ones((decoder_input_ids.shape[1],) * 2, bool))[None, None]
    shared = weights.embedding("shared")
    encoded = network.stack("encoder", rows_of(shared, input_ids), visible, None)
    decoded = network.stack("decoder", rows_of(shared, decoder_input_ids), causal, (encoded, visible))
    if config["tie_word_embeddings"]:
        return product(decoded * config["d_model"] ** -0.5, shared)
    return product(decoded, weights.kernel("lm_head"))


def encoder_outputs(weights: TorchWeights, config: Config, input_ids: Array, rounding: Rounding) -> Array:
    """Float64 outputs `[batch, length, embed]` of the encoder; see `logits`."""
    visible = (input_ids != config["pad_token_id"])[:, None, None, :]
    embedded = rows_of(weights.embedding("shared"), input_ids)
    return Network(weights, config, rounding).stack("encoder", embedded, visible, None)


def token_logits(weights: TorchWeights, config: Config, input_ids: Array, rounding: Rounding) -> Array:
    """Float64 logits `[batch, length, labels]` of a classifier of tokens on the encoder; see `logits`."""
    visible = (input_ids != config["pad_token_id"])[:, None, None, :]
    embedded = rows_of(weights.embedding("transformer.shared"), input_ids)
    encoded = Network(weights, config, rounding).stack("transformer.encoder", embedded, visible, None)
    return product(encoded, weights.kernel("classifier")) + weights.bias("classifier")


class Network:
    def __init__(self, weights: TorchWeights, config: Config, rounding: Rounding):
        self.weights, self.config, self.rounding = weights, config, rounding

    def stack(self, stack: str, x: Array, visible: Array, encoded: tuple[Array, Array] | None) -> Array:
        weights, config = self.weights, self.config
        bias = None
        for i in range(config["num_layers"] if encoded is None else config["num_decoder_layers"]):
            block = f"{stack}.block.{i}.layer"
            # One table in the first block for all of a stack; in umT5, one in each.
            table = f"{block}.0.SelfAttention.relative_attention_bias"
            if i == 0 or weights.has_embedding(table):
                places = np.arange(x.shape[1])
                bias = self.position_bias(table, places - places[:, None], bidirectional=encoded is None)
            y = self.norm(f"{block}.0.layer_norm", x)
            x = self.rounding(x + self.attention(f"{block}.0.SelfAttention", y, y, visible, bias))
            last = 1
            if encoded is not None:
                y = self.norm(f"{block}.1.layer_norm", x)
                x = self.rounding(x + self.attention(f"{block}.1.EncDecAttention", y, *encoded, None))
                last = 2
            y = self.norm(f"{block}.{last}.layer_norm", x)
            x = self.rounding(x + self.feed_forward(f"{block}.{last}.DenseReluDense", y))
        return self.norm(f"{stack}.final_layer_norm", x)

    def position_bias(self, table: str, distances: Array, bidirectional: bool = True) -> Array:
        """`[1, heads, queries, keys]` of the distances, key - query, `[queries, keys]`."""
        num_buckets = self.config["relative_attention_num_buckets"]
        most = self.config["relative_attention_max_distance"]
        found, places = np.unique(distances, return_inverse=True)
        buckets = np.array([_bucket(int(d), bidirectional, num_buckets, most) for d in found], int)
        of_bucket = np.asarray(self.weights.embedding(table)).astype(np.float64)
        return of_bucket[buckets[places.reshape(distances.shape)]].transpose(2, 0, 1)[None]

    def norm(self, module: str, x: Array) -> Array:
        variance = np.mean(np.square(x), -1, keepdims=True)
        epsilon = self.config["layer_norm_epsilon"]
        return self.rounding(x / np.sqrt(variance + epsilon) * self.weights.scale(module))

    def _product(self, module: str, x: Array) -> Array:
        return self.rounding(product(x, self.weights.kernel(module)))

    def attention(self, module: str, x: Array, memory: Array, visible: Array, bias: Array | None) -> Array:
        def heads(name: str, source: Array) -> Array:
            projected = self._product(f"{module}.{name}", source)
            sizes = (self.config["num_heads"], self.config["d_kv"])
            return projected.reshape(*source.shape[:2], *sizes).transpose(0, 2, 1, 3)

        scores = self.rounding(heads("q", x) @ heads("k", memory).transpose(0, 1, 3, 2))
        if bias is not None:
            scores = scores + bias
        scores = np.where(visible, scores, -np.inf)
        exponentials = self.rounding(np.exp(scores - scores.max(-1, keepdims=True)))
        attended = exponentials / exponentials.sum(-1, keepdims=True) @ heads("v", memory)
        joined = attended.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
        return self._product(f"{module}.o", self.rounding(joined))

    def feed_forward(self, module: str, x: Array) -> Array:
        projection = self.config["feed_forward_proj"]
        function = ACTIVATIONS[activation(projection)]
        if projection.startswith("gated-"):
            hidden = function(self._product(f"{module}.wi_0", x)) * self._product(f"{module}.wi_1", x)
        else:
            hidden = function(self._product(f"{module}.wi", x))
        return self._product(f"{module}.wo", self.rounding(hidden))


def possible(config: Config) -> str | None:
    """Why a network cannot be computed here; None if it can."""
    name = activation(config["feed_forward_proj"])
    return None if name in ACTIVATIONS else f"{name} is not among {', '.join(ACTIVATIONS)}"


def activation(projection: str) -> str:
    """The name in `ACTIVATIONS` of what a `feed_forward_proj` applies."""
    return {"gated-gelu": "gelu_new"}.get(projection, projection.removeprefix("gated-"))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / 2 * (1 + np.tanh(x / 2)),
    "gelu": lambda x: 0.5 * x * (1 + scipy.special.erf(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def _bucket(relative_position: int, bidirectional: bool, num_buckets: int, max_distance: int) -> int:
    """One bucket a distance up to half of them, then logarithmically wider ones up to `max_distance`."""
    offset, distance = 0, max(-relative_position, 0)
    if bidirectional:
        num_buckets //= 2
        offset, distance = num_buckets if relative_position > 0 else 0, abs(relative_position)
    exact = num_buckets // 2
    if distance < exact:
        return offset + distance
    # In float32, as every implementation of T5 computes it: a distance on an edge must fall on the same side.
    ratio = np.log(np.float32(distance) / np.float32(exact)) / np.float32(math.log(max_distance / exact))
    return offset + min(exact + int(ratio * np.float32(num_buckets - exact)), num_buckets - 1)
