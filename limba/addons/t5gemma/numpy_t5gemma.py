"""The forward pass of Hugging Face's T5Gemma in NumPy: what an export means, computed without the code that wrote it.

It follows Gemma 2's definition (arXiv:2408.00118), with T5Gemma's cross-attention (arXiv:2504.06225) or T5Gemma 2's
merged attention, from Hugging Face's tensors, and shares nothing with Limba's network or table of names. For checks,
not for speed; see `numpy_t5`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from limba.convert.compare.float64 import Rounding, product, rows_of
from limba.convert.compare.numpy_encoders import turned
from limba.convert.compare.numpy_t5 import ACTIVATIONS, Array, Config, TorchWeights, activation

# The base of rotary positions, and their speed; None turns nothing.
_Angle = tuple[float, float] | None


def logits(
    weights: TorchWeights, config: Config, input_ids: Array, decoder_input_ids: Array, rounding: Rounding
) -> Array:
    """Float64 logits `[batch, targets, vocab]`; see `numpy_t5.logits`.

    Args:
      config: the config.json as Limba reads it, with "gemma_layers".
    """
    network = _Network(weights, config, rounding)
    visible = (input_ids != config["pad_token_id"])[:, None, None, :]
    causal = np.tril(np.ones((decoder_input_ids.shape[1],) * 2, bool))[None, None]
    encoded = network.stack("encoder", input_ids, visible, None)
    decoded = network.stack("decoder", decoder_input_ids, causal, (encoded, visible))
    is_tied = config["tie_word_embeddings"]
    kernel = weights.embedding(network.embedding("decoder")) if is_tied else weights.kernel("lm_head.out_proj")
    return _capped(product(decoded, kernel), config["gemma_layers"]["final_logit_softcapping"])


class _Network:
    def __init__(self, weights: TorchWeights, config: Config, rounding: Rounding):
        self._weights, self._config, self._rounding = weights, config, rounding
        self._gemma: Mapping[str, Any] = config["gemma_layers"]

    def embedding(self, stack: str) -> str:
        return f"model.{'encoder' if self._gemma['shared_embedding'] else stack}.embed_tokens"

    def stack(self, stack: str, ids: Array, visible: Array, encoded: tuple[Array, Array] | None) -> Array:
        x = rows_of(self._weights.embedding(self.embedding(stack)), ids) * self._config["d_model"] ** 0.5
        gemma, length = self._gemma, ids.shape[1]
        window, every = gemma["sliding_window"], gemma["global_attention_every"]
        base, speed = gemma["rotary_base"], 1 / gemma["rotary_factor"]
        for i in range(self._config["num_layers"] if encoded is None else self._config["num_decoder_layers"]):
            layer, seen, angle = f"model.{stack}.layers.{i}", visible, (base, speed)
            if window is not None and (i + 1) % every:
                before = after = window - 1
                if encoded is None and gemma["halved_encoder_window"]:
                    before, after = (window + 1) // 2 - 1, window // 2
                distances = np.arange(length) - np.arange(length)[:, None]
                seen = visible & (-before <= distances) & (distances <= after)
                angle = gemma["local_rotary_base"] or base, 1.0
            y = self._norm(f"{layer}.pre_self_attn_layernorm", x)
            if encoded is not None and gemma["merged_attention"]:
                y = self._attention(f"{layer}.self_attn", y, [(y, seen, angle), (*encoded, None)], angle)
            else:
                y = self._attention(f"{layer}.self_attn", y, [(y, seen, angle)], angle)
            x = self._rounding(x + self._norm(f"{layer}.post_self_attn_layernorm", y))
            if encoded is not None and not gemma["merged_attention"]:
                y = self._norm(f"{layer}.pre_cross_attn_layernorm", x)
                y = self._attention(f"{layer}.cross_attn", y, [(*encoded, None)], None)
                x = self._rounding(x + self._norm(f"{layer}.post_cross_attn_layernorm", y))
            y = self._feed_forward(f"{layer}.mlp", self._norm(f"{layer}.pre_feedforward_layernorm", x))
            x = self._rounding(x + self._norm(f"{layer}.post_feedforward_layernorm", y))
        return self._norm(f"model.{stack}.norm", x)

    def _norm(self, module: str, x: Array) -> Array:
        variance = np.mean(np.square(x), -1, keepdims=True)
        return self._rounding(x / np.sqrt(variance + self._gemma["norm_epsilon"]) * (1 + self._weights.scale(module)))

    def _product(self, module: str, x: Array) -> Array:
        return self._rounding(product(x, self._weights.kernel(module)))

    def _attention(self, module: str, x: Array, seen: Sequence[tuple[Array, Array, _Angle]], angle: _Angle) -> Array:
        """Of queries from `x` to all of `seen`: states, which of them are visible, and how their keys are turned."""
        num_heads, head_dim = self._config["num_heads"], self._config["d_kv"]

        def heads(name: str, source: Array, angle: _Angle) -> Array:
            projected = self._product(f"{module}.{name}_proj", source)
            by_head = projected.reshape(*source.shape[:2], -1, head_dim)
            if self._gemma["qk_norm"] and name != "v":
                by_head = self._norm(f"{module}.{name}_norm", by_head)
            by_head = by_head.transpose(0, 2, 1, 3)
            if angle is not None and name != "v":
                by_head = self._rounding(turned(by_head, angle[0], speed=angle[1]))
            return np.repeat(by_head, num_heads // by_head.shape[1], axis=1)

        scale = (self._gemma["query_pre_attn_scalar"] or head_dim) ** -0.5
        query, scores = heads("q", x, angle), []
        for source, visible, of_keys in seen:
            products = self._rounding(query @ heads("k", source, of_keys).transpose(0, 1, 3, 2) * scale)
            # Finite: padding may see nothing within its window, and must not become NaN.
            scores.append(np.where(visible, _capped(products, self._gemma["attn_logit_softcapping"]), -1e30))
        joined = np.concatenate(scores, -1)
        exponentials = self._rounding(np.exp(joined - joined.max(-1, keepdims=True)))
        value = np.concatenate([heads("v", source, None) for source, *_ in seen], 2)
        attended = exponentials / exponentials.sum(-1, keepdims=True) @ value
        return self._product(
            f"{module}.o_proj", self._rounding(attended.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))
        )

    def _feed_forward(self, module: str, x: Array) -> Array:
        gate = ACTIVATIONS[activation(self._config["feed_forward_proj"])](self._product(f"{module}.gate_proj", x))
        return self._product(f"{module}.down_proj", self._rounding(gate * self._product(f"{module}.up_proj", x)))


def _capped(x: Array, cap: float | None) -> Array:
    return x if cap is None else cap * np.tanh(x / cap)
