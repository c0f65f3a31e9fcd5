"""Self-attention of an encoder, and what all its layers share: masks, rotary angles and T5's biases."""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from limba.encoders import rotary
from limba.encoders.config import EncoderConfig
from limba.kernels import attention as fused
from limba.network import attention, layers

Array = jax.Array


@flax.struct.dataclass
class AttentionInputs:
    """What layers of one reach, global or local, attend with beside their hidden states.

    Attributes:
      mask: bool `[batch, 1, length, length]`, True where a query may look; a `Visible` asks for the fused kernels.
      bias: T5's, `[1, heads, length, length]`; with a `Visible` it is a `DistanceBias`.
      rotation: of rotary positions.
    """

    mask: Array | fused.Visible
    bias: Array | fused.DistanceBias | None = None
    rotation: rotary.Rotation | None = None


def dense_mask(config: EncoderConfig, tokens: Array, segment_ids: Array | None) -> Array:
    """Bool `[batch, 1, length, length]`: no padding, and only the query's own segment."""
    real = tokens != config.pad_id
    mask = attention.make_attention_mask(real, real, jnp.logical_and, dtype=bool)
    segments = attention.segment_mask(segment_ids, segment_ids)
    return mask if segments is None else mask & segments


def visible(config: EncoderConfig, tokens: Array, segment_ids: Array | None) -> fused.Visible | None:
    """The same for the fused kernels; None where they are not used."""
    if config.has_relative_keys:
        return None
    real = (tokens != config.pad_id).astype(jnp.int32)
    return fused.visible(config, real, real, segment_ids, segment_ids)


def local_mask(length: int, window: int) -> Array:
    """Bool `[1, 1, length, length]`: True up to half a window to each side. A segment is contiguous."""
    places = jnp.arange(length)
    return (jnp.abs(places[:, None] - places) <= window // 2)[None, None]


def _to_keys(by_distance: Array) -> Array:
    """`[…, length, 2 * length - 1] -> […, length, length]`: row i keeps column j - i + length - 1 as its column j.

    One reshape does it, because every row begins one column further left than the row before. A gather would have a
    scatter as its gradient.
    """
    length = by_distance.shape[-2]
    width = 2 * length - 1
    padded = jnp.pad(by_distance, [(0, 0)] * (by_distance.ndim - 1) + [(0, 1)])
    flat = padded.reshape(*by_distance.shape[:-2], -1)[..., length - 1 : length - 1 + length * width]
    return flat.reshape(*by_distance.shape[:-2], length, width)[..., :length]


class RelativeKeyLogits(nn.Module):
    """Products of queries, and perhaps keys, with a learned vector of each distance (arXiv:2009.13658).

    Row `r` of the table is for the query `r - max_positions + 1` places after the key, as in Hugging Face's BERT.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, query: Array, key: Array) -> Array:
        """Logits `[batch, heads, length, length]`.

        Args:
          query, key: `[batch, length, heads, kv]`, each divided by sqrt(kv).
        """
        cfg = self.config
        length, most = query.shape[1], cfg.max_positions
        table = layers.param_with_axes(
            "embedding",
            nn.initializers.normal(cfg.initializer_range),
            (2 * most - 1, cfg.head_dim),
            jnp.float32,
            axes=("relpos_buckets", "kv"),
        )[most - length : most + length - 1]
        dtype = jnp.float32 if cfg.float32_attention_logits else cfg.dtype
        logits = _to_keys(layers.einsum("bqhd,rd->bhqr", query, table[::-1], dtype))
        if cfg.position_embedding_type == "relative_key_query":
            of_keys = _to_keys(layers.einsum("bkhd,rd->bhkr", key, table, dtype))
            logits += jnp.swapaxes(of_keys, -1, -2)
        return logits


class SelfAttention(nn.Module):
    """Multi-head self-attention of an encoder, with queries divided by sqrt(head_dim)."""

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: Array, inputs: AttentionInputs, deterministic: bool) -> Array:
        """`[batch, length, embed] -> [batch, length, embed]`."""
        cfg = self.config
        query, key, value = (self._project(name, x) for name in ("query", "key", "value"))
        if inputs.rotation is not None:
            query, key = inputs.rotation(query), inputs.rotation(key)
        divisor = jnp.sqrt(cfg.head_dim).astype(cfg.dtype)
        query = query / divisor
        rng = self.make_rng("dropout") if cfg.attention_dropout_rate > 0.0 and not deterministic else None
        mask, bias = inputs.mask, inputs.bias
        if isinstance(mask, fused.Visible):
            assert not isinstance(bias, Array)
            value = value if rng is None else fused.drop_values(value, rng, cfg.attention_dropout_rate)
            attended = fused.attend(query, key, value, mask, bias)
        else:
            assert not isinstance(bias, fused.DistanceBias)
            if cfg.has_relative_keys:
                bias = RelativeKeyLogits(cfg, name="relative_key")(query, key / divisor)
            attended = attention.dot_product_attention(
                query,
                key,
                value,
                bias,
                rng,
                cfg.attention_dropout_rate,
                deterministic,
                cfg.dtype,
                cfg.float32_attention_logits,
                mask=mask,
            )
        return self._dense(cfg.emb_dim, (-2, -1), ("joined_kv", "embed"), "out")(attended)

    def _project(self, name: str, x: Array) -> Array:
        """`[batch, length, embed] -> [batch, length, heads, kv]`."""
        cfg = self.config
        projected = self._dense((cfg.num_heads, cfg.head_dim), -1, ("embed", "joined_kv"), name)(x)
        return layers.with_sharding_constraint(projected, ("batch", "length", "heads", "kv"))

    def _dense(
        self, features: int | tuple[int, ...], axis: int | tuple[int, ...], axes: tuple[str, str], name: str
    ) -> layers.DenseGeneral:
        cfg = self.config
        init = nn.initializers.normal(cfg.initializer_range)
        return layers.DenseGeneral(features, axis, cfg.dtype, init, axes, cfg.attention_bias, name=name)
