"""Self-attention of an encoder, and what all its layers share: masks, rotary angles and T5's biases."""

import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from limba.devices import target
from limba.network import attention, attention_by_rows, layers
from limba.network.encoders import disentangled, relative_keys, rotary
from limba.network.encoders.config import EncoderConfig, sparse_part
from limba.network.kernels import attention as fused

Array = jax.Array


@flax.struct.dataclass
class AttentionInputs:
    """What layers of one reach, global or local, attend with beside their hidden states.

    Attributes:
      mask: bool `[batch, 1, length, length]`, True where a query may look; a `Visible` asks for the fused kernels,
        what is no array, and no `Visible`, is `visible_blocks` of sparse attention.
      bias: T5's, `[1, heads, length, length]`; with a mask that is no array it is a `DistanceBias`.
      rotation: of rotary positions.
      relative: of disentangled attention, a vector of each bucket of distances `[2 * num_buckets, embed]`.
    """

    mask: Any
    bias: Array | fused.DistanceBias | None = None
    rotation: rotary.Rotation | None = None
    relative: Array | None = None


def dense_mask(config: EncoderConfig, tokens: Array, segment_ids: Array | None) -> Array:
    """Bool `[batch, 1, length, length]`: no padding, and only the query's own segment."""
    real = tokens != config.pad_id
    mask = attention.make_attention_mask(real, real, jnp.logical_and, dtype=bool)
    segments = attention.segment_mask(segment_ids, segment_ids)
    return mask if segments is None else mask & segments


def visible(config: EncoderConfig, tokens: Array, segment_ids: Array | None) -> fused.Visible | None:
    """The same for the fused kernels; None where they are not used."""
    if config.has_relative_keys or config.has_disentangled_attention:
        return None
    real = (tokens != config.pad_id).astype(jnp.int32)
    return fused.visible(config, real, real, segment_ids, segment_ids, has_bias=config.has_buckets)


def visible_blocks(config: EncoderConfig, tokens: Array, segment_ids: Array | None) -> Any:
    """The same for sparse attention, as its add-on wants it; None where attention is not sparse."""
    if config.sparse_attention is None:
        return None
    real = (tokens != config.pad_id).astype(jnp.int32)
    return sparse_part().visible(config, real if segment_ids is None else real * segment_ids)


class SelfAttention(nn.Module):
    """Multi-head self-attention of an encoder, with queries divided by sqrt(head_dim).

    Disentangled attention adds two further products, and divides by the square root of three times as much.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, x: Array, inputs: AttentionInputs, deterministic: bool) -> Array:
        """`[batch, length, embed] -> [batch, length, embed]`."""
        cfg = self.config
        projections = [self._projection(name) for name in ("query", "key", "value")]
        query, key, value = (_by_head(cfg, projection(x)) for projection in projections)
        if inputs.rotation is not None:
            query, key = inputs.rotation(query), inputs.rotation(key)
        num_products = 1 if inputs.relative is None else disentangled.NUM_PRODUCTS
        query = query / jnp.sqrt(num_products * cfg.head_dim).astype(cfg.dtype)
        rng = self.make_rng("dropout") if cfg.attention_dropout_rate > 0.0 and not deterministic else None
        mask, bias, table = inputs.mask, inputs.bias, None
        if cfg.has_relative_keys:
            table = relative_keys.RelativeKeyTable(cfg, name="relative_key")(x.shape[1])
        value = value if rng is None else fused.drop_values(value, rng, cfg.attention_dropout_rate)
        if not isinstance(mask, Array):
            assert not isinstance(bias, Array)
            if isinstance(mask, fused.Visible):
                attended = fused.attend(query, key, value, mask, bias)
            else:
                by_distance = None if bias is None else bias.table
                attended = sparse_part().attend(cfg, query, key, value, mask, by_distance, table)
        else:
            assert not isinstance(bias, fused.DistanceBias)
            if inputs.relative is not None:
                rates = nn.Dropout(cfg.dropout_rate)
                by_bucket = rates(inputs.relative, deterministic=deterministic)
                of_buckets = [projection(by_bucket) for projection in projections[:2]]
                bias = disentangled.logits(cfg, query, key, *of_buckets)
            bias = bias if table is None else relative_keys.relative_key_logits(cfg, query, key, table)
            types = {"dtype": cfg.dtype, "float32_logits": cfg.float32_attention_logits}
            attend = functools.partial(attention.dot_product_attention, **types)
            if cfg.kernels != "xla" and target.platform() == "cpu":
                attend = functools.partial(attention_by_rows.attend, attend)
            attended = attend(query=query, key=key, value=value, bias=bias, mask=mask)
        return self._dense(cfg.emb_dim, (-2, -1), ("joined_kv", "embed"), "out")(attended)

    def _projection(self, name: str) -> layers.DenseGeneral:
        """`[..., embed] -> [..., heads, kv]`; of keys and values there may be fewer heads."""
        cfg = self.config
        heads = cfg.num_heads if name == "query" else cfg.num_kv_heads or cfg.num_heads
        return self._dense((heads, cfg.head_dim), -1, ("embed", "joined_kv"), name)

    def _dense(
        self, features: int | tuple[int, ...], axis: int | tuple[int, ...], axes: tuple[str, str], name: str
    ) -> layers.DenseGeneral:
        cfg = self.config
        init = nn.initializers.normal(cfg.initializer_range)
        return layers.DenseGeneral(features, axis, cfg.dtype, init, axes, cfg.attention_bias, name=name)


def _by_head(config: EncoderConfig, projected: Array) -> Array:
    """`[batch, length, heads, kv]`, as a mesh has it; a head of fewer keys and values is repeated."""
    heads = projected.shape[-2]
    if heads < config.num_heads:
        projected = jnp.repeat(projected, config.num_heads // heads, axis=-2)
    return layers.with_sharding_constraint(projected, ("batch", "length", "heads", "kv"))
