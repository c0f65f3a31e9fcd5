"""The forward pass of HPLT's NorT5 in NumPy: what an export means, computed without the code that wrote it.

It follows the paper (Samuel et al., NoDaLiDa 2023) and DeBERTa's products of contents and places (arXiv:2006.03654),
from the tensors of HPLT's class, and shares nothing with Limba's network or table of names. For checks, not for speed.
"""

import math
from typing import Any

import numpy as np

from limba.convert.compare.float64 import Rounding, product, rows_of
from limba.convert.compare.numpy_t5 import ACTIVATIONS, Array, Config, TorchWeights

# Further distances count as this one.
_FURTHEST = 511


def logits(
    weights: TorchWeights, config: Config, input_ids: Array, decoder_input_ids: Array, rounding: Rounding
) -> Array:
    """Float64 logits `[batch, targets, vocab]`; see `numpy_t5.logits`.

    Args:
      config: the config.json as Limba reads it, with "nort5".
    """
    network = _Network(weights, config, rounding)
    visible = (input_ids != config["pad_token_id"])[:, None, None, :]
    causal = np.tril(np.ones((decoder_input_ids.shape[1],) * 2, bool))[None, None]
    encoded, decoded = network.embedded(input_ids), network.embedded(decoder_input_ids)
    places = network.places("encoder.relative_embedding")
    for i in range(config["num_layers"]):
        layer = f"encoder.layers.{i}"
        encoded = network.attended(f"{layer}.attention", encoded, encoded, visible, places)
        encoded = network.fed_forward(f"{layer}.mlp.mlp", encoded)
    own, cross = (network.places(f"decoder.{which}_relative_embedding") for which in ("self", "cross"))
    for i in range(config["num_decoder_layers"]):
        layer = f"decoder.layers.{i}"
        decoded = network.attended(f"{layer}.self_attention", decoded, decoded, causal, own)
        decoded = network.attended(f"{layer}.cross_attention", decoded, encoded, visible, cross)
        decoded = network.fed_forward(f"{layer}.mlp.mlp", decoded)
    output = "classifier.nonlinearity.2"
    return product(network.standardized(decoded), weights.kernel(output)) + weights.bias(output)


class _Network:
    def __init__(self, weights: TorchWeights, config: Config, rounding: Rounding):
        self._weights, self._config, self._rounding = weights, config, rounding
        self._own: dict[str, Any] = config["nort5"]

    def standardized(self, x: Array) -> Array:
        deviation = np.sqrt(np.var(x, -1, keepdims=True) + self._own["norm_epsilon"])
        return self._rounding((x - np.mean(x, -1, keepdims=True)) / deviation)

    def _norm(self, module: str, x: Array) -> Array:
        return self._rounding(self.standardized(x) * self._weights.scale(module) + self._weights.bias(module))

    def embedded(self, ids: Array) -> Array:
        return self.standardized(rows_of(self._weights.embedding("embedding.word_embedding"), ids))

    def places(self, module: str) -> Array:
        """A vector of each bucket, `[2 * buckets - 1, width]`."""
        table = np.asarray(self._weights.embedding(f"{module}.relative_embedding")).astype(np.float64)
        return self._norm(f"{module}.relative_layer_norm", table)

    def attended(self, module: str, x: Array, seen: Array, visible: Array, places: Array) -> Array:
        """`x` and what attention from it to `seen` adds."""
        x_, seen = self.standardized(x), self.standardized(seen)
        query, key, value = (self._heads(f"{module}.in_proj_{n}", y) for n, y in (("q", x_), ("k", seen), ("v", seen)))
        # Of places `[heads, buckets, width]`.
        of_query, of_key = (self._heads(f"{module}.in_proj_{name}", places[None])[0] for name in "qk")
        rows = self._rows(x.shape[1], seen.shape[1])
        to_place = np.take_along_axis(query @ of_key.swapaxes(-1, -2), rows[None, None], -1)
        from_place = np.take_along_axis(of_query @ key.swapaxes(-1, -2), rows[None, None], -2)
        scores = (query @ key.swapaxes(-1, -2) + to_place + from_place) / math.sqrt(3 * query.shape[-1])
        scores = np.where(visible, self._rounding(scores), -np.inf)
        exponentials = self._rounding(np.exp(scores - scores.max(-1, keepdims=True)))
        attended = self._rounding(exponentials / exponentials.sum(-1, keepdims=True) @ value)
        joined = attended.swapaxes(1, 2).reshape(*x.shape[:2], -1)
        update = self._norm(f"{module}.post_layer_norm", self._product(f"{module}.out_proj", joined))
        return self._rounding(x + update)

    def _product(self, module: str, x: Array) -> Array:
        return self._rounding(product(x, self._weights.kernel(module)) + self._weights.bias(module))

    def _heads(self, module: str, x: Array) -> Array:
        """`[batch, heads, length, width]`"""
        projected = self._product(module, x)
        return projected.reshape(*x.shape[:2], self._config["num_heads"], -1).swapaxes(1, 2)

    def _rows(self, queries: int, keys: int) -> Array:
        """The bucket of each query and key, as a row of the table: `[queries, keys]`."""
        buckets = self._own["num_buckets"]
        half = buckets // 2
        distance = np.clip(np.arange(queries)[:, None] - np.arange(keys), -_FURTHEST, _FURTHEST)
        size = np.maximum(np.abs(distance), half)
        # In float32, as HPLT's class: a distance may lie between two buckets.
        share = np.log(size.astype(np.float32) / np.float32(half)) / np.float32(math.log(_FURTHEST / half))
        far = np.sign(distance) * (np.ceil(share * np.float32(half - 1)).astype(int) + half)
        return buckets - 1 + np.where(np.abs(distance) <= half, distance, far)

    def fed_forward(self, module: str, x: Array) -> Array:
        both = self._rounding(product(self.standardized(x), self._weights.kernel(f"{module}.1")))
        hidden, gate = np.split(both, 2, axis=-1)
        hidden = self.standardized(self._rounding(hidden * ACTIVATIONS["gelu_new"](gate)))
        return self._rounding(x + self._rounding(product(hidden, self._weights.kernel(f"{module}.4"))))
