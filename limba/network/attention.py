"""Multi-head attention with T5's relative position bias, masks, and the cache of incremental decoding.

Fields and calls are those of T5X's layers, so that networks written for T5X are built of these.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from limba.devices import target
from limba.network import attention_by_rows
from limba.network.attention_weights import attention_weights
from limba.network.encoders import rotary
from limba.network.kernels import attention as fused
from limba.network.layers import (
    DenseGeneral,
    Initializer,
    ResidualLayerNorm,
    param_with_axes,
    soft_capped,
    with_sharding_constraint,
)
from limba.network.products import einsum, with_gradient_apart

Array = jax.Array
DType = Any

# ----------------------------------------------------- masks -------------------------------------------------------
# A mask is [batch, 1, query_length, key_length] and positive where a query may look. T5X's users make masks of numbers,
# so that is the default of these functions; the network here asks for bool.


def make_attention_mask(
    query_input: Array,
    key_input: Array,
    pairwise_fn: Callable = jnp.multiply,
    extra_batch_dims: int = 0,
    dtype: DType = jnp.float32,
) -> Array:
    """`pairwise_fn` of every query with every key.

    Args:
      query_input, key_input: `[batch, query_length]` and `[batch, key_length]`: what is compared, such as "is a token"
        or segment ids.
      extra_batch_dims: dims of size 1 to put in front.
    """
    mask = pairwise_fn(query_input[..., :, None], key_input[..., None, :])[..., None, :, :]
    return jnp.expand_dims(mask, tuple(range(extra_batch_dims))).astype(dtype)


def make_causal_mask(x: Array, extra_batch_dims: int = 0, dtype: DType = jnp.float32) -> Array:
    """True where the key does not come after the query, for tokens `[batch, length]` of any value."""
    positions = jnp.broadcast_to(jnp.arange(x.shape[-1]), x.shape)
    return make_attention_mask(positions, positions, jnp.greater_equal, extra_batch_dims, dtype)


def make_decoder_mask(
    decoder_target_tokens: Array,
    dtype: DType,
    decoder_causal_attention: Array | None = None,
    decoder_segment_ids: Array | None = None,
) -> Array:
    """The mask of a decoder's self-attention; all arguments are `[batch, length]`.

    Args:
      decoder_target_tokens: 0 is padding, which neither looks nor is looked at.
      decoder_causal_attention: 1 in the prefix of a prefix LM, whose positions all see each other; causal when None.
      decoder_segment_ids: which packed example a position belongs to; examples do not see each other.
    """
    allowed = make_causal_mask(decoder_target_tokens, dtype=bool)
    if decoder_causal_attention is not None:
        prefix = decoder_causal_attention > 0
        allowed |= make_attention_mask(prefix, prefix, jnp.logical_and, dtype=bool)
    real = decoder_target_tokens > 0
    allowed &= make_attention_mask(real, real, jnp.logical_and, dtype=bool)
    if decoder_segment_ids is not None:
        allowed &= make_attention_mask(decoder_segment_ids, decoder_segment_ids, jnp.equal, dtype=bool)
    return allowed.astype(dtype)


def segment_mask(query_segments: Array | None, key_segments: Array | None) -> Array | None:
    """True within one packed example; None (no restriction) for batches that are not packed."""
    if query_segments is None or key_segments is None:
        return None
    return make_attention_mask(query_segments, key_segments, jnp.equal, dtype=bool)


def local_mask(length: int, before: int, after: int) -> Array:
    """Bool `[1, 1, length, length]`: True for a query and so many keys before and after it. A segment is contiguous."""
    places = jnp.arange(length)
    distance = places - places[:, None]
    return ((distance >= -before) & (distance <= after))[None, None]


def combine_masks(*masks: Array | None, dtype: DType = jnp.float32) -> Array | None:
    """Allowed only where every given mask allows; None if none is given."""
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(jnp.logical_and, given).astype(dtype) if given else None


def combine_biases(*biases: Array | None) -> Array | None:
    """The sum of the given biases; None if none is given."""
    given = [bias for bias in biases if bias is not None]
    return functools.reduce(operator.add, given) if given else None


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

    num_buckets: int
    max_distance: int
    num_heads: int
    dtype: DType = jnp.float32
    embedding_init: Initializer = nn.linear.default_embed_init

    @nn.compact
    def __call__(
        self, qlen: int, klen: int, bidirectional: bool = True, decode: bool = False, by_distance: bool = False
    ) -> Array | fused.DistanceBias:
        """Bias `[1, heads, qlen, klen]`, or `by_distance` a table of it.

        With `decode` the bias of all positions is computed by the call that makes the cache, and kept there: later
        calls return it whatever their lengths are, and attention takes the row of the position that it decodes.
        """
        if decode and self.has_variable("cache", "cached_bias"):
            return self.get_variable("cache", "cached_bias")
        rel_embedding = param_with_axes(
            "rel_embedding",
            self.embedding_init,
            (self.num_heads, self.num_buckets),
            jnp.float32,
            axes=("heads", "relpos_buckets"),
        )
        if by_distance:
            relative_position = jnp.arange(1 - qlen, klen)
        else:
            relative_position = jnp.arange(klen)[None, :] - jnp.arange(qlen)[:, None]
        buckets = relative_position_bucket(relative_position, bidirectional, self.num_buckets, self.max_distance)
        # One row per distance is looked up by a one-hot product: its gradient is a matmul, not a scatter.
        one_hot = jax.nn.one_hot(buckets, self.num_buckets, dtype=self.dtype)
        if by_distance:
            return fused.DistanceBias(jnp.einsum("hr,nr->hn", rel_embedding, one_hot.astype(jnp.float32)))
        bias = jnp.einsum("hr,qkr->hqk", rel_embedding.astype(self.dtype), one_hot)[None]
        if decode:
            self.put_variable("cache", "cached_bias", bias)
        return bias


# ---------------------------------------------------- attention ----------------------------------------------------


def dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None = None,
    dropout_rng: Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: DType = jnp.float32,
    float32_logits: bool = False,
    *,
    mask: Array | None = None,
    length_last: bool = False,
    softcap: float | None = None,
) -> Array:
    """The values that each query attends to, `[batch, query_length, heads, kv]`.

    Args:
      query: `[batch, query_length, heads, kv]`; not divided by sqrt(kv).
      key, value: `[batch, key_length, heads, kv]`; of fewer heads each serves as many of the queries'.
      bias: added to the logits, broadcast to `[batch, heads, query_length, key_length]`.
      dropout_rng, dropout_rate: of attention weights; all queries of a row drop the same.
      dtype: of the products.
      float32_logits: multiply queries and keys, and keep the weights, in float32 even if `dtype` is not.
      mask: True where a query may look, broadcast as the bias is.
      length_last: keys and values are `[batch, heads, kv, key_length]`, as the cache has them.
      softcap: of the logits, see `layers.soft_capped`.
    """
    order = "bhdk" if length_last else "bkhd"
    of_weights = jnp.float32 if float32_logits else dtype
    shape, kv_heads = query.shape, key.shape[1 if length_last else 2]
    group = "" if kv_heads == shape[2] else "g"  # Queries that share keys are a dim of their own.
    if group:
        query = query.reshape(*shape[:2], kv_heads, shape[2] // kv_heads, shape[3])
    logits = einsum(f"bqh{group}d,{order}->bh{group}qk", query, key, of_weights, jnp.float32)
    if group:
        logits = logits.reshape(shape[0], shape[2], *logits.shape[3:])
    if softcap is not None:
        logits = soft_capped(logits, softcap)
    if bias is not None:
        # Broadcast in its own type: in bfloat16 CPUs take a third of the time for its gradient, a sum over the batch.
        logits += jnp.broadcast_to(bias, logits.shape).astype(logits.dtype)
    weights = attention_weights(logits, mask, of_weights).astype(dtype)
    if not deterministic and dropout_rate > 0.0:
        assert dropout_rng is not None
        keep = 1.0 - dropout_rate
        kept = jax.random.bernoulli(dropout_rng, keep, (*weights.shape[:-2], 1, weights.shape[-1]))
        weights = weights * (kept.astype(weights.dtype) / jnp.asarray(keep, weights.dtype))
    if not group:
        return einsum(f"bhqk,{order}->bqhd", weights, value, dtype)
    weights = weights.reshape(shape[0], kv_heads, -1, *weights.shape[2:])
    return einsum(f"bhgqk,{order}->bqhgd", weights, value, dtype).reshape(shape)


class MultiHeadDotProductAttention(nn.Module):
    """T5's attention: no biases, no division by sqrt(head_dim) (the query initializer carries it).

    Attributes:
      num_heads, head_dim: their product need not be the width of the inputs.
      dtype: of activations.
      dropout_rate: of attention weights.
      kernel_init: of all four kernels; the query's is divided by sqrt(head_dim).
      float32_logits: see `dot_product_attention`.
      joined_kernels: kernels are matrices `[embed, joined_kv]`; otherwise `[embed, heads, kv]`. The same numbers, but
        Adafactor factors them differently, and checkpoints have either.
      scale_logits: divide the queries by sqrt(head_dim) after all, beside what their initializer does.
      by_rows: on CPUs without dropout, some rows of the batch after others (`attention_by_rows`).
      num_kv_heads: heads of keys and values, of which each serves several of queries; None is `num_heads`.
      query_scale: what queries are multiplied by, whose initial kernel is then not divided; None is T5's way.
      softcap: of the logits, see `layers.soft_capped`; None leaves them.
      rotary_base: of rotary positions, by the place in the row; None has none.
      rotary_factor: positions are divided by it first.
      window: of self-attention: how many positions are seen before a query and after it; None sees all.
      qk_norm_epsilon: of norms of each head's queries and keys; None has none.
    """

    num_heads: int
    head_dim: int
    dtype: DType = jnp.float32
    dropout_rate: float = 0.0
    kernel_init: Initializer = nn.initializers.variance_scaling(1.0, "fan_in", "normal")
    float32_logits: bool = False
    joined_kernels: bool = True
    scale_logits: bool = False
    by_rows: bool = True
    num_kv_heads: int | None = None
    query_scale: float | None = None
    softcap: float | None = None
    rotary_base: float | None = None
    rotary_factor: float = 1.0
    window: tuple[int, int] | None = None
    qk_norm_epsilon: float | None = None

    @nn.compact
    def __call__(
        self,
        inputs_q: Array,
        inputs_kv: Array,
        mask: Array | fused.Visible | None = None,
        bias: Array | fused.DistanceBias | None = None,
        *,
        decode: bool = False,
        deterministic: bool = False,
        prefill: bool = False,
        prefill_lengths: Array | None = None,
        keep_keys: bool = False,
    ) -> Array:
        """Attends from `inputs_q` `[batch, query_length, embed]` to `inputs_kv` `[batch, key_length, embed]`.

        Args:
          inputs_kv: keys and values are computed from it; the same array as `inputs_q` for self-attention.
          mask: `[batch, 1, query_length, key_length]`, positive where a query may look, or None. A `Visible` asks for
            the fused kernels, which do not decode.
          bias: added to the logits, `[1, heads, query_length, key_length]`, or None. When decoding it has a row for
            every position. With a `Visible` it is a `DistanceBias`.
          decode: self-attention of one position to those in the cache. The first call makes the cache, as long as its
            inputs are.
          prefill: self-attention that also writes the first `prefill_lengths` positions into the cache.
          prefill_lengths: `[batch]`; each row then continues from its own position.
          keep_keys: for attention to something that stays the same while decoding: puts keys and values into the
            cache. Calls without `decode` and `prefill` use what is there.

        Raises:
          ValueError: if more than one position is decoded at a time, or `prefill` comes without a cache.
        """
        if mask is not None and not isinstance(mask, fused.Visible):
            mask = mask > 0
        asking = inputs_q / jnp.sqrt(self.head_dim).astype(self.dtype) if self.scale_logits else inputs_q
        query = self._project("query", asking)
        rng = self.make_rng("dropout") if self.dropout_rate > 0.0 and not deterministic else None
        keeps_encoded = not (decode or prefill) and self.has_variable("cache", "encoded_key")
        if keeps_encoded or (decode and self.has_variable("cache", "cached_key")):
            assert not isinstance(mask, fused.Visible)
            assert not isinstance(bias, fused.DistanceBias)
            key: Array
            value: Array
            if keeps_encoded:
                key, value = self.get_variable("cache", "encoded_key"), self.get_variable("cache", "encoded_value")
            else:
                query = self._turned(query, jnp.atleast_1d(self.get_variable("cache", "cache_index"))[:, None])
                key, value = self._project("key", inputs_kv), self._project("value", inputs_kv)
                key, value, mask, bias = self._decode_one_position(key, value, mask, bias)
            query, mask = decodes_as_queries(query, mask, key.shape[0])
            attended = self._plain(query, key, value, mask, bias, rng, length_last=True)
            attended = attended.reshape(*inputs_q.shape[:2], *attended.shape[2:])
        else:
            if inputs_kv is inputs_q and target.platform() == "gpu":
                inputs_kv = with_gradient_apart(inputs_kv)
            key, value = self._project("key", inputs_kv), self._project("value", inputs_kv)
            places = jnp.arange(inputs_q.shape[1])[None]
            query, key = self._turned(query, places), self._turned(key, places)
            if prefill:
                self._prefill_cache(key, value, prefill_lengths)
            elif decode:
                self._put_cache(jnp.zeros_like(key), jnp.zeros_like(value), jnp.zeros((), jnp.int32))
            elif keep_keys:
                self.put_variable("cache", "encoded_key", jnp.moveaxis(key, 1, -1))
                self.put_variable("cache", "encoded_value", jnp.moveaxis(value, 1, -1))
            if isinstance(mask, fused.Visible):
                assert not isinstance(bias, Array)
                value = value if rng is None else fused.drop_values(value, rng, self.dropout_rate)
                attended = fused.attend(query, self._for_each_query(key), self._for_each_query(value), mask, bias)
            else:
                assert not isinstance(bias, fused.DistanceBias)
                if self.window is not None and mask is not None:  # The call that makes a cache has no mask.
                    mask &= local_mask(inputs_q.shape[1], *self.window)
                attended = self._plain(query, key, value, mask, bias, rng)
        return self._out(attended, inputs_q.shape[-1])

    def _out(self, attended: Array, width: int) -> Array:
        """`[batch, length, heads, kv] -> [batch, length, width]`."""
        axes = ("joined_kv", "embed") if self.joined_kernels else ("heads", "kv", "embed")
        return DenseGeneral(width, (-2, -1), self.dtype, self.kernel_init, axes, name="out")(attended)

    def _plain(
        self,
        query: Array,
        key: Array,
        value: Array,
        mask: Array | None,
        bias: Array | None,
        rng: Array | None,
        length_last: bool = False,
    ) -> Array:
        if self.by_rows and rng is None and not length_last and target.platform() == "cpu":
            types = {"dtype": self.dtype, "float32_logits": self.float32_logits}
            plain = functools.partial(dot_product_attention, **types, softcap=self.softcap)
            return attention_by_rows.attend(plain, query, key, value, bias, mask)
        return dot_product_attention(
            query,
            key,
            value,
            bias,
            rng,
            self.dropout_rate,
            rng is None,
            self.dtype,
            self.float32_logits,
            mask=mask,
            length_last=length_last,
            softcap=self.softcap,
        )

    def _turned(self, x: Array, positions: Array) -> Array:
        """Queries or keys `[batch, length, heads, kv]`, by their `positions` `[batch or 1, length]`.

        Attention compares positions of one segment, so those of packed rows need not begin at 0 in each.
        """
        if self.rotary_base is None:
            return x
        return rotary.rotation(positions / self.rotary_factor, self.head_dim, self.rotary_base, "halves")(x)

    def _for_each_query(self, x: Array) -> Array:
        """Keys or values, as many heads of them as of queries."""
        if x.shape[2] == self.num_heads:
            return x
        repeated = jnp.repeat(x, self.num_heads // x.shape[2], axis=2)
        return with_sharding_constraint(repeated, ("batch", "length", "heads", "kv"))

    def _project(self, name: str, inputs: Array) -> Array:
        """`[batch, length, embed] -> [batch, length, heads, kv]`."""
        divides = name == "query" and self.query_scale is None
        scale = jnp.sqrt(self.head_dim).astype(self.dtype) if divides else 1.0
        heads = self.num_heads if name == "query" else self.num_kv_heads or self.num_heads
        projected = DenseGeneral(
            (heads, self.head_dim),
            -1,
            self.dtype,
            lambda *args: self.kernel_init(*args) / scale,
            ("embed", "joined_kv") if self.joined_kernels else ("embed", "heads", "kv"),
            name=name,
        )(inputs)
        if self.qk_norm_epsilon is not None and name != "value":
            norm = ResidualLayerNorm(
                epsilon=self.qk_norm_epsilon,
                dtype=self.dtype,
                axis="kv",
                kernels="xla",
                zero_centered=True,
                name=f"{name}_norm",
            )
            projected = norm(projected)[1]
        if name == "query" and self.query_scale is not None:
            projected *= jnp.asarray(self.query_scale, self.dtype)
        # A mesh may have more shards than there are heads of keys.
        shared = "heads" if heads == self.num_heads else None
        return with_sharding_constraint(projected, ("batch", "length", shared, "kv"))

    # ------------------------------------------------ cache ------------------------------------------------
    # encoded_key, encoded_value [examples, heads, kv, length]: of something that stays the same, for all decodes.
    # cached_key, cached_value [examples, heads, kv, length * beams]: zero where nothing was decoded.
    # cached_by [examples, beams, length]: the beam that wrote what a beam sees at each position. A beam that continues
    #   another one takes over its row of this, and no keys; the queries of all beams ask the keys of all.
    # cache_index: the next position: a scalar, or [batch] after a prefill.
    #
    # Without beams `beams` is 1, and an example may be one of several samples. The length is the last dim, as in T5X:
    # otherwise XLA's CPU compiler transposes all keys for each token, which takes four times as long as the attention.

    def _put_cache(self, key: Array, value: Array, index: Array) -> None:
        """`[batch, length, heads, kv]`"""
        for name, entry in (("cached_key", key), ("cached_value", value)):
            self.put_variable("cache", name, jnp.moveaxis(entry, 1, -1))
        self.put_variable("cache", "cached_by", jnp.zeros((key.shape[0], 1, key.shape[1]), jnp.int32))
        self.put_variable("cache", "cache_index", index)

    def _prefill_cache(self, key: Array, value: Array, lengths: Array | None) -> None:
        if lengths is None or not self.has_variable("cache", "cached_key"):
            raise ValueError("prefill needs prefill_lengths, and a cache that a call with decode=True has made.")
        in_prompt = (jnp.arange(key.shape[1]) < lengths[:, None])[:, :, None, None]
        self._put_cache(jnp.where(in_prompt, key, 0), jnp.where(in_prompt, value, 0), lengths)

    def _decode_one_position(
        self, key: Array, value: Array, mask: Array | None, bias: Array | None
    ) -> tuple[Array, Array, Array, Array | None]:
        """Keys and values of all positions, `[examples, heads, kv, length * beams]`, and mask and bias of them.

        Args:
          key, value: of the new position, `[examples * beams, 1, heads, kv]`; the key is not turned yet.

        Raises:
          ValueError: if they are of several positions.
        """
        index: Array = self.get_variable("cache", "cache_index")
        written_by: Array = self.get_variable("cache", "cached_by")
        examples, beams, length = written_by.shape
        if key.shape[1] != 1:
            raise ValueError(f"Decoding feeds one position at a time, with a cache of {length}; got {key.shape[1]}.")
        rows = jnp.atleast_1d(index)
        key = self._append("cached_key", self._turned(key, rows[:, None]), index)
        value = self._append("cached_value", value, index)
        self.put_variable("cache", "cache_index", index + 1)
        seen = (jnp.arange(length) <= rows[:, None])[:, None, None, :]
        if self.window is not None:
            seen &= (jnp.arange(length) >= rows[:, None] - self.window[0])[:, None, None, :]
        seen = seen if mask is None else seen & mask
        if bias is not None:
            bias = jnp.moveaxis(jnp.take(bias[0], rows, axis=1, mode="clip"), 1, 0)[:, :, None, :]
        if beams > 1:
            seen = jnp.broadcast_to(seen, (examples * beams, 1, 1, length)).reshape(examples, beams, length, 1)
            seen = (seen & self._written_by_each_beam(index)).reshape(examples, 1, beams, length * beams)
            if bias is not None:  # All beams of an example are at the same position.
                bias = jnp.repeat(bias[::beams], beams, axis=-1)
        return key, value, seen, bias

    def _append(self, name: str, new: Array, index: Array) -> Array:
        """Puts `new` `[examples * beams, 1, heads, kv]` at its place."""
        cached: Array = self.get_variable("cache", name)
        examples, heads, kv, size = cached.shape
        beams = new.shape[0] // examples
        new = jnp.moveaxis(new.astype(cached.dtype).reshape(examples, beams, heads, kv), 1, -1)
        # An update of bf16 in place would convert all of the cache to float32 and back, on CPUs.
        if index.ndim == 0 and not (cached.dtype == jnp.bfloat16 and target.platform() == "cpu"):
            cached = jax.lax.dynamic_update_slice_in_dim(cached, new, index * beams, axis=-1)
        else:  # Rows at the end of the cache write nothing any more.
            here = jnp.arange(size) // beams == (index if index.ndim == 0 else index[::beams, None, None, None])
            cached = jnp.where(here, jnp.tile(new, size // beams), cached)
        self.put_variable("cache", name, cached)
        return cached

    def _written_by_each_beam(self, index: Array) -> Array:
        """Whether a beam's positions were written by each of the beams: `[examples, beams, length, beams]`."""
        written_by: Array = self.get_variable("cache", "cached_by")
        examples, beams, length = written_by.shape
        own = jnp.arange(beams, dtype=written_by.dtype)[:, None]
        now = jnp.arange(length) == (index if index.ndim == 0 else index.reshape(examples, beams, 1))
        written_by = jnp.where(now, own, written_by)
        self.put_variable("cache", "cached_by", written_by)
        return written_by[..., None] == jnp.arange(beams)


def decodes_as_queries(query: Array, mask: Array | None, examples: int) -> tuple[Array, Array | None]:
    """Decodes of one example as queries of one row, so that its keys are read once.

    Args:
      query: `[examples * decodes, queries, heads, kv]`; one query each, where there are several decodes.
      mask: broadcast to `[examples * decodes, 1, queries, keys]`, or of the rows that are returned.
    """
    decodes = query.shape[0] // examples
    if decodes == 1:
        return query, mask
    if mask is not None and mask.shape[0] == query.shape[0]:
        mask = mask.reshape(examples, 1, decodes, mask.shape[-1])
    return query.reshape(examples, decodes, *query.shape[2:]), mask
