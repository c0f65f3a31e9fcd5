"""The forward pass of BART and mBART in NumPy: what an export means, computed without the code that wrote it.

It follows the papers (arXiv:1910.13461, 2001.08210) from the tensors of their classes, and shares nothing with Limba's
network or table of names. For checks, not for speed.
"""

import math
from typing import Any

import numpy as np

from limba.convert.compare.float64 import Rounding, product, rows_of
from limba.convert.compare.numpy_t5 import ACTIVATIONS, Array, Config, TorchWeights

_EPSILON = 1e-5
# Rows of the table of positions before the first one.
_OFFSET = 2


def logits(
    weights: TorchWeights, config: Config, input_ids: Array, decoder_input_ids: Array, rounding: Rounding
) -> Array:
    """Float64 logits `[batch, targets, vocab]`; see `numpy_t5.logits`.

    Args:
      config: the config.json as Limba reads it, with "bart".
    """
    network = _Network(weights, config, rounding)
    visible = (input_ids != config["pad_token_id"])[:, None, None, :]
    causal = np.tril(np.ones((decoder_input_ids.shape[1],) * 2, bool))[None, None]
    encoded, decoded = network.embedded("encoder", input_ids), network.embedded("decoder", decoder_input_ids)
    for i in range(config["num_layers"]):
        layer = f"model.encoder.layers.{i}"
        encoded = network.attended(f"{layer}.self_attn", encoded, None, visible)
        encoded = network.fed_forward(layer, encoded)
    encoded = network.last_norm("encoder", encoded)
    for i in range(config["num_decoder_layers"]):
        layer = f"model.decoder.layers.{i}"
        decoded = network.attended(f"{layer}.self_attn", decoded, None, causal)
        decoded = network.attended(f"{layer}.encoder_attn", decoded, encoded, visible)
        decoded = network.fed_forward(layer, decoded)
    decoded = network.last_norm("decoder", decoded)
    return product(decoded, weights.embedding("model.shared"))


class _Network:
    def __init__(self, weights: TorchWeights, config: Config, rounding: Rounding):
        self._weights, self._config, self._rounding = weights, config, rounding
        self._own: dict[str, Any] = config["bart"]

    def _norm(self, module: str, x: Array) -> Array:
        deviation = np.sqrt(np.var(x, -1, keepdims=True) + _EPSILON)
        normal = self._rounding((x - np.mean(x, -1, keepdims=True)) / deviation)
        return self._rounding(normal * self._weights.scale(module) + self._weights.bias(module))

    def last_norm(self, stack: str, x: Array) -> Array:
        return self._norm(f"model.{stack}.layer_norm", x) if self._own["norms_before"] else x

    def embedded(self, stack: str, ids: Array) -> Array:
        x = rows_of(self._weights.embedding("model.shared"), ids)
        x = x * math.sqrt(self._config["d_model"]) if self._own["scale_embedding"] else x
        places = _OFFSET + np.arange(ids.shape[1])
        x = self._rounding(x + rows_of(self._weights.embedding(f"model.{stack}.embed_positions"), places))
        return self._norm(f"model.{stack}.layernorm_embedding", x)

    def attended(self, module: str, x: Array, seen: Array | None, visible: Array) -> Array:
        """`x` behind attention to `seen`, or to itself, with its norm."""
        before = self._own["norms_before"]
        y = self._norm(f"{module}_layer_norm", x) if before else x
        seen = y if seen is None else seen
        query, key, value = (self._heads(f"{module}.{n}_proj", z) for n, z in (("q", y), ("k", seen), ("v", seen)))
        scores = self._rounding(query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1]))
        scores = np.where(visible, scores, -np.inf)
        exponentials = self._rounding(np.exp(scores - scores.max(-1, keepdims=True)))
        attended = self._rounding(exponentials / exponentials.sum(-1, keepdims=True) @ value)
        joined = attended.swapaxes(1, 2).reshape(*x.shape[:2], -1)
        x = self._rounding(x + self._product(f"{module}.out_proj", joined))
        return x if before else self._norm(f"{module}_layer_norm", x)

    def fed_forward(self, layer: str, x: Array) -> Array:
        """`x` behind feed-forward, with its norm."""
        before = self._own["norms_before"]
        y = self._norm(f"{layer}.final_layer_norm", x) if before else x
        hidden = self._rounding(ACTIVATIONS[self._config["feed_forward_proj"]](self._product(f"{layer}.fc1", y)))
        x = self._rounding(x + self._product(f"{layer}.fc2", hidden))
        return x if before else self._norm(f"{layer}.final_layer_norm", x)

    def _product(self, module: str, x: Array) -> Array:
        return self._rounding(product(x, self._weights.kernel(module)) + self._weights.bias(module))

    def _heads(self, module: str, x: Array) -> Array:
        """`[batch, heads, length, width]`"""
        projected = self._product(module, x)
        return projected.reshape(*x.shape[:2], self._config["num_heads"], -1).swapaxes(1, 2)
