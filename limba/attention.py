"""Multi-head attention with T5's relative position bias, masks, and the cache of incremental decoding."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from limba.layers import Dense, einsum, param_with_axes, with_sharding_constraint

Array = jax.Array
DType = Any

# What a masked logit becomes: far below any real one, and finite so that a fully masked row stays finite.
_MASKED = -1e10

# ----------------------------------------------------- masks -------------------------------------------------------
# A mask is bool [batch, 1, query_length, key_length]: True where a query may look.


def padding_mask(queries: Array, keys: Array) -> Array:
    """True where both positions are real. `queries` and `keys` are bool `[batch, length]`."""
    return (queries[:, :, None] & keys[:, None, :])[:, None]


def segment_mask(query_segments: Array | None, key_segments: Array | None) -> Array | None:
    """True within one packed example; None (no restriction) for batches that are not packed."""
    if query_segments is None or key_segments is None:
        return None
    return (query_segments[:, :, None] == key_segments[:, None, :])[:, None]


def causal_mask(length: int) -> Array:
    """True where the key does not come after the query: `[1, 1, length, length]`."""
    return jnp.tril(jnp.ones((1, 1, length, length), bool))


def combine_masks(*masks: Array | None) -> Array | None:
    """Allowed only where every given mask allows."""
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    combined = given[0]
    for mask in given[1:]:
        combined = combined & mask
    return combined


# ------------------------------------------------ relative positions -----------------------------------------------


def relative_position_bucket(
    relative_position: Array, bidirectional: bool, num_buckets: int, max_distance: int
) -> Array:
    """The bucket of `key position - query position`, any shape (arXiv:1910.10683, section 2.1).

    Half of the buckets hold one distance each, the other half grow logarithmically up to `max_distance`. Bidirectional
    attention splits them again by sign; causal attention puts every later key into bucket 0.
    """
    offset: Array | int = 0
    distance = -relative_position
    if bidirectional:
        num_buckets //= 2
        offset = jnp.where(distance < 0, num_buckets, 0)
        distance = jnp.abs(distance)
    else:
        distance = jnp.maximum(distance, 0)
    max_exact = num_buckets // 2
    # The smallest float keeps log(0) away where the exact half applies anyway.
    log_ratio = jnp.log(distance.astype(jnp.float32) / max_exact + np.finfo(np.float32).eps)
    logarithmic = max_exact + (log_ratio / math.log(max_distance / max_exact) * (num_buckets - max_exact)).astype(
        jnp.int32
    )
    logarithmic = jnp.minimum(logarithmic, num_buckets - 1)
    return offset + jnp.where(distance < max_exact, distance, logarithmic)


class RelativePositionBiases(nn.Module):
    """A learned bias per head and bucket of the distance between query and key."""

    num_heads: int
    num_buckets: int = 32
    max_distance: int = 128
    dtype: DType = jnp.float32

    @nn.compact
    def __call__(self, query_positions: Array, key_length: int, bidirectional: bool) -> Array:
        """Bias `[1, heads, query_length, key_length]` for queries at `query_positions` `[query_length]`."""
        rel_embedding = param_with_axes(
            "rel_embedding",
            nn.initializers.variance_scaling(1.0, "fan_avg", "uniform"),
            (self.num_heads, self.num_buckets),
            jnp.float32,
            axes=("heads", "relpos_buckets"),
        )
        relative_position = jnp.arange(key_length)[None, :] - query_positions[:, None]
        buckets = relative_position_bucket(relative_position, bidirectional, self.num_buckets, self.max_distance)
        # One row per distance is looked up by a one-hot product: its gradient is a matmul, not a scatter.
        one_hot = jax.nn.one_hot(buckets, self.num_buckets, dtype=self.dtype)
        return jnp.einsum("hr,qkr->hqk", rel_embedding.astype(self.dtype), one_hot)[None]


# ---------------------------------------------------- attention ----------------------------------------------------


class MultiHeadDotProductAttention(nn.Module):
    """T5's attention: no biases, no division by sqrt(head_dim) (the query initializer carries it).

    Kernels are joined, `[embed, heads * kv]`, so that Adafactor factors them as T5X does.
    """

    num_heads: int
    head_dim: int
    dropout_rate: float
    dtype: DType = jnp.float32
    float32_logits: bool = False

    @nn.compact
    def __call__(
        self,
        inputs_q: Array,
        inputs_kv: Array,
        mask: Array | None,
        bias: Array | None,
        deterministic: bool,
        cache_index: Array | None = None,
        max_decode_length: int | None = None,
    ) -> Array:
        """Attends from `inputs_q` `[batch, query_length, embed]` to `inputs_kv` `[batch, key_length, embed]`.

        Args:
          inputs_q: what asks.
          inputs_kv: what is looked at; the same array as `inputs_q` for self-attention.
          mask: bool `[batch, 1, query_length, key_length]`, or None.
          bias: added to the logits, `[1, heads, query_length, key_length]`, or None.
          deterministic: no dropout.
          cache_index: the position being decoded; None outside incremental decoding.
          max_decode_length: length of the self-attention cache; None (with a `cache_index`) marks cross-attention,
            whose keys and values are computed once and kept.

        Returns:
          `[batch, query_length, embed]`.
        """
        query = self._project("query", inputs_q, scale=1.0 / self.head_dim)
        if cache_index is None:
            key, value = self._project("key", inputs_kv), self._project("value", inputs_kv)
        elif max_decode_length is None:
            key, value = self._cached_cross_keys(inputs_kv)
        else:
            key, value = self._append_to_cache(inputs_kv, cache_index, max_decode_length)
            mask = combine_masks(mask, (jnp.arange(max_decode_length) <= cache_index)[None, None, None, :])

        logits_dtype = jnp.float32 if self.float32_logits else self.dtype
        logits = einsum("bqhd,bkhd->bhqk", query, key, logits_dtype)
        if bias is not None:
            logits = logits + bias.astype(logits.dtype)
        if mask is not None:
            logits = jnp.where(mask, logits, jnp.asarray(_MASKED, logits.dtype))
        weights = jax.nn.softmax(logits).astype(self.dtype)
        weights = nn.Dropout(self.dropout_rate, broadcast_dims=(-2,))(weights, deterministic=deterministic)
        attended = einsum("bhqk,bkhd->bqhd", weights, value, self.dtype)

        joined = attended.reshape(*attended.shape[:2], self.num_heads * self.head_dim)
        return Dense(inputs_q.shape[-1], ("joined_kv", "embed"), self.dtype, _kernel_init(1.0), name="out")(joined)

    def _project(self, name: str, inputs: Array, scale: float = 1.0) -> Array:
        """`[batch, length, embed] -> [batch, length, heads, kv]`."""
        features = self.num_heads * self.head_dim
        joined = Dense(features, ("embed", "joined_kv"), self.dtype, _kernel_init(scale), name=name)(inputs)
        split = joined.reshape(*joined.shape[:2], self.num_heads, self.head_dim)
        return with_sharding_constraint(split, ("batch", "length", "heads", "kv"))

    def _cached_cross_keys(self, encoded: Array) -> tuple[Array, Array]:
        if not self.has_variable("cache", "cached_key"):
            self.put_variable("cache", "cached_key", self._project("key", encoded))
            self.put_variable("cache", "cached_value", self._project("value", encoded))
        return self.get_variable("cache", "cached_key"), self.get_variable("cache", "cached_value")

    def _append_to_cache(self, inputs: Array, index: Array, max_decode_length: int) -> tuple[Array, Array]:
        cached = []
        for name, projection in (("cached_key", "key"), ("cached_value", "value")):
            new = self._project(projection, inputs)
            if self.has_variable("cache", name):
                old: Array = self.get_variable("cache", name)
                updated = jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), index, axis=1)
            else:  # The call that makes the cache writes nothing into it.
                updated = jnp.zeros((new.shape[0], max_decode_length, *new.shape[2:]), new.dtype)
            self.put_variable("cache", name, updated)
            cached.append(updated)
        return cached[0], cached[1]


def _kernel_init(scale: float):
    """Variance `scale / fan_in`: the query's 1 / sqrt(head_dim) is folded into its initial weights."""
    return nn.initializers.variance_scaling(scale, "fan_in", "normal")
