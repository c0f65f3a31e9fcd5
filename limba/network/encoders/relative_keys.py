"""Products of queries and keys with a learned vector of their distance (arXiv:1803.02155, arXiv:2009.13658)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from limba.network import layers, products
from limba.network.encoders.config import EncoderConfig
from limba.network.kernels import distances

Array = jax.Array


class RelativeKeyTable(nn.Module):
    """A vector of each distance.

    Row `r` of the parameter is for the query `r - max_positions + 1` places after the key, as in Hugging Face's BERT.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self, length: int) -> Array:
        """`[2 * length - 1, kv]` by key - query, from -(length - 1) on."""
        cfg = self.config
        table = layers.param_with_axes(
            "embedding",
            nn.initializers.normal(cfg.initializer_range),
            (2 * cfg.max_positions - 1, cfg.head_dim),
            jnp.float32,
            axes=("relpos_buckets", "kv"),
        )
        return table[cfg.max_positions - length : cfg.max_positions + length - 1][::-1]


def relative_key_logits(config: EncoderConfig, query: Array, key: Array, table: Array) -> Array:
    """Float32 logits `[batch, heads, queries, keys]`.

    Args:
      query: `[batch, queries, heads, kv]`, divided by sqrt(kv).
      key: `[batch, keys, heads, kv]`, not divided.
      table: `[queries + keys - 1, kv]` by key - query.
    """
    dtype = config.attention_weights_dtype
    logits = distances.to_keys(products.einsum("bqhd,rd->bhqr", query, table, dtype, jnp.float32))
    if config.position_embedding_type == "relative_key_query":
        key = key / jnp.sqrt(config.head_dim).astype(config.dtype)
        of_keys = distances.to_keys(products.einsum("bkhd,rd->bhkr", key, table[::-1], dtype, jnp.float32))
        logits += jnp.swapaxes(of_keys, -1, -2)
    return logits
