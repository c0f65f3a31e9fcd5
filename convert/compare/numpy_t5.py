"""The forward pass of Hugging Face's T5 in NumPy: what an export means, computed without the code that wrote it.

It reads config.json and Hugging Face's tensors, follows T5's definition (arXiv:1910.10683 and, for gated feed-forward
blocks, arXiv:2002.05202), and shares nothing with Limba's network or table of names. For checks, not for speed.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Config = Mapping[str, Any]


class TorchWeights:
    """The tensors of a PyTorch state dict, `module.weight`, in float32; its kernels are `[out, in]`."""

    def __init__(self, tensors: Mapping[str, Any]):
        self._tensors = tensors

    def _name(self, module: str, leaf: str) -> str:
        return f"{module}.weight"

    def _tensor(self, module: str, leaf: str) -> Array:
        return np.asarray(self._tensors[self._name(module, leaf)]).astype(np.float32, copy=False)

    def kernel(self, module: str) -> Array:  # [in, out]
        return self._tensor(module, "kernel").T

    def embedding(self, module: str) -> Array:  # [rows, features]
        return self._tensor(module, "embedding")

    def has_embedding(self, module: str) -> bool:
        return self._name(module, "embedding") in self._tensors

    def scale(self, module: str) -> Array:  # [features]
        return self._tensor(module, "weight")


class FlaxWeights(TorchWeights):
    """The tensors of a Flax tree, `module/kernel`, `module/embedding`, `module/weight`; its kernels are `[in, out]`."""

    def _name(self, module: str, leaf: str) -> str:
        return f"{module.replace('.', '/')}/{leaf}"

    def kernel(self, module: str) -> Array:
        return self._tensor(module, "kernel")


def logits(weights: TorchWeights, config: Config, input_ids: Array, decoder_input_ids: Array) -> Array:
    """Float32 logits `[batch, targets, vocab]`; both ids are `[batch, length]`, and 0 among the inputs is padding."""
    visible = (input_ids != config["pad_token_id"])[:, None, None, :]
    causal = np.tril(np.ones((decoder_input_ids.shape[1],) * 2, bool))[None, None]
    shared = weights.embedding("shared")
    encoded = _stack(weights, config, "encoder", shared[input_ids], visible, None)
    decoded = _stack(weights, config, "decoder", shared[decoder_input_ids], causal, (encoded, visible))
    if config["tie_word_embeddings"]:
        return decoded * np.float32(config["d_model"] ** -0.5) @ shared.T
    return decoded @ weights.kernel("lm_head")


def _stack(
    weights: TorchWeights, config: Config, stack: str, x: Array, visible: Array, encoded: tuple[Array, Array] | None
) -> Array:
    epsilon = config["layer_norm_epsilon"]
    bias = None
    num_layers = config["num_layers"] if encoded is None else config["num_decoder_layers"]
    for i in range(num_layers):
        block = f"{stack}.block.{i}.layer"
        # One table in the first block for all of a stack; in umT5, one in each.
        table = f"{block}.0.SelfAttention.relative_attention_bias"
        if i == 0 or weights.has_embedding(table):
            bias = _position_bias(weights.embedding(table), config, x.shape[1], bidirectional=encoded is None)
        y = _rms_norm(x, weights.scale(f"{block}.0.layer_norm"), epsilon)
        x = x + _attention(weights, config, f"{block}.0.SelfAttention", y, y, visible, bias)
        last = 1
        if encoded is not None:
            y = _rms_norm(x, weights.scale(f"{block}.1.layer_norm"), epsilon)
            x = x + _attention(weights, config, f"{block}.1.EncDecAttention", y, *encoded, None)
            last = 2
        y = _rms_norm(x, weights.scale(f"{block}.{last}.layer_norm"), epsilon)
        x = x + _feed_forward(weights, config, f"{block}.{last}.DenseReluDense", y)
    return _rms_norm(x, weights.scale(f"{stack}.final_layer_norm"), epsilon)


def _rms_norm(x: Array, scale: Array, epsilon: float) -> Array:
    return x / np.sqrt(np.mean(np.square(x), -1, keepdims=True) + np.float32(epsilon)) * scale


def _attention(
    weights: TorchWeights, config: Config, module: str, x: Array, memory: Array, visible: Array, bias: Array | None
) -> Array:
    def heads(name: str, source: Array) -> Array:
        projected = source @ weights.kernel(f"{module}.{name}")
        return projected.reshape(*source.shape[:2], config["num_heads"], config["d_kv"]).transpose(0, 2, 1, 3)

    scores = heads("q", x) @ heads("k", memory).transpose(0, 1, 3, 2)
    if bias is not None:
        scores = scores + bias
    scores = np.where(visible, scores, -np.inf)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    attended = exponentials / exponentials.sum(-1, keepdims=True) @ heads("v", memory)
    joined = attended.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1)
    return joined @ weights.kernel(f"{module}.o")


def _feed_forward(weights: TorchWeights, config: Config, module: str, x: Array) -> Array:
    projection = config["feed_forward_proj"]
    activation = _ACTIVATIONS[_activation(projection)]
    if projection.startswith("gated-"):
        hidden = activation(x @ weights.kernel(f"{module}.wi_0")) * (x @ weights.kernel(f"{module}.wi_1"))
    else:
        hidden = activation(x @ weights.kernel(f"{module}.wi"))
    return hidden @ weights.kernel(f"{module}.wo")


def possible(config: Config) -> str | None:
    """Why a network cannot be computed here; None if it can."""
    name = _activation(config["feed_forward_proj"])
    return None if name in _ACTIVATIONS else f"{name} is not among {', '.join(_ACTIVATIONS)}"


def _activation(projection: str) -> str:
    return {"gated-gelu": "gelu_new"}.get(projection, projection.removeprefix("gated-"))


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(np.float32(math.sqrt(2 / math.pi)) * (x + 0.044715 * x**3))),
}


def _position_bias(table: Array, config: Config, length: int, bidirectional: bool) -> Array:
    """`[1, heads, length, length]` from a table `[buckets, heads]`."""
    num_buckets, max_distance = config["relative_attention_num_buckets"], config["relative_attention_max_distance"]
    distances = np.arange(length) - np.arange(length)[:, None]  # [query, key]
    buckets = [[_bucket(int(d), bidirectional, num_buckets, max_distance) for d in row] for row in distances]
    return table[np.array(buckets)].transpose(2, 0, 1)[None]


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
