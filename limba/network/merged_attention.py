"""T5Gemma 2's attention in the decoder: to the encoder's outputs and to the decoder itself, in one softmax."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from limba.network.attention import MultiHeadDotProductAttention, decodes_as_queries, local_mask

Array = jax.Array


class MergedAttention(MultiHeadDotProductAttention):
    """Queries see keys of both stacks, projected by the same kernels; the encoder's have no positions and no window.

    Parameters are those of self-attention. The cache has self-attention's entries and the encoder's keys and values,
    `encoded_key` and `encoded_value`, `[examples, heads, kv, length]`.
    """

    @nn.compact
    def __call__(  # type: ignore[override]
        self,
        inputs_q: Array,
        encoded: Array,
        mask: Array | None,
        encoded_mask: Array,
        places: Array,
        *,
        decode: bool = False,
        deterministic: bool = False,
        keep_keys: bool = False,
    ) -> Array:
        """Attends from `inputs_q` `[batch, length, embed]` to itself and to `encoded` `[batch, inputs_length, embed]`.

        Args:
          mask: bool `[batch, 1, length, length]`; None for the call that makes a cache, and with one.
          encoded_mask: bool `[batch, 1, length, inputs_length]`.
          places: of the queries in their texts, `[batch or 1, length]`; unused with a cache, which counts itself.
          decode, keep_keys: see `MultiHeadDotProductAttention`.

        Raises:
          ValueError: if more than one position is decoded at a time.
        """
        query = self._project("query", inputs_q)
        rng = self.make_rng("dropout") if self.dropout_rate > 0.0 and not deterministic else None
        if decode and self.has_variable("cache", "cached_key"):
            attended = self._decode_of_both(query, inputs_q, encoded, encoded_mask, rng)
            return self._out(attended, inputs_q.shape[-1])
        key, encoded_key, value, encoded_value = self._project_keys(inputs_q, encoded)
        query, key = self._turned(query, places), self._turned(key, places)
        if decode:
            self._put_cache(jnp.zeros_like(key), jnp.zeros_like(value), jnp.zeros((), jnp.int32))
        if keep_keys:
            self.put_variable("cache", "encoded_key", jnp.moveaxis(encoded_key, 1, -1))
            self.put_variable("cache", "encoded_value", jnp.moveaxis(encoded_value, 1, -1))
        if mask is None:
            mask = jnp.ones((1, 1, key.shape[1], key.shape[1]), bool)
        elif self.window is not None:
            mask &= local_mask(key.shape[1], *self.window)
        both = _side_by_side(mask, encoded_mask)
        key, value = jnp.concatenate([key, encoded_key], 1), jnp.concatenate([value, encoded_value], 1)
        return self._out(self._plain(query, key, value, both, None, rng), inputs_q.shape[-1])

    def _project_keys(self, inputs: Array, encoded: Array) -> tuple[Array, Array, Array, Array]:
        """Keys of the decoder and of the encoder, then values, `[batch, length, heads, kv]`; keys are not turned."""
        both = jnp.concatenate([inputs, encoded], axis=1)  # A module has one call of each projection.
        keys, values = self._project("key", both), self._project("value", both)
        length = inputs.shape[1]
        return keys[:, :length], keys[:, length:], values[:, :length], values[:, length:]

    def _decode_of_both(
        self, query: Array, inputs: Array, encoded: Array, encoded_mask: Array, rng: Array | None
    ) -> Array:
        """One position of each decode, `[batch, 1, heads, kv]`."""
        query = self._turned(query, jnp.atleast_1d(self.get_variable("cache", "cache_index"))[:, None])
        if self.has_variable("cache", "encoded_key"):
            key, value = self._project("key", inputs), self._project("value", inputs)
            of_encoder = [self.get_variable("cache", name) for name in ("encoded_key", "encoded_value")]
        else:
            key, encoded_key, value, encoded_value = self._project_keys(inputs, encoded)
            of_encoder = [jnp.moveaxis(x, 1, -1) for x in (encoded_key, encoded_value)]
        key, value, mask, _ = self._decode_one_position(key, value, None, None)
        examples = key.shape[0]
        for i, x in enumerate(of_encoder):
            # Beams of an example share its row, and have the same inputs; samples have a row each.
            x = x[:: max(1, x.shape[0] // examples)]
            of_encoder[i] = jnp.repeat(x, examples // x.shape[0], axis=0)
        key, value = (jnp.concatenate(pair, -1) for pair in zip((key, value), of_encoder, strict=True))
        shape = query.shape
        query, of_encoder_mask = decodes_as_queries(query, encoded_mask, examples)
        both = _side_by_side(mask, encoded_mask if of_encoder_mask is None else of_encoder_mask)
        return self._plain(query, key, value, both, None, rng, length_last=True).reshape(shape)


def _side_by_side(mask: Array, encoded_mask: Array) -> Array:
    """Both masks side by side, `[batch, 1, queries, keys of both]`."""
    shape = jnp.broadcast_shapes(mask.shape[:-1], encoded_mask.shape[:-1])
    return jnp.concatenate([jnp.broadcast_to(x, (*shape, x.shape[-1])) for x in (mask, encoded_mask)], -1)
