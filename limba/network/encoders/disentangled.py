"""Disentangled attention (DeBERTa, arXiv:2006.03654): content to position and position to content, beside content to
content, with a vector of each distance in buckets that widen with it (DeBERTa-v2 and v3, arXiv:2111.09543)."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from limba.network import layers, products
from limba.network.encoders.config import EncoderConfig
from limba.network.kernels import distances

Array = jax.Array

# Of which logits are the sum.
NUM_PRODUCTS = 3


class BucketEmbedder(nn.Module):
    """A vector of each bucket of distances, normalized: `[2 * num_buckets, embed]`.

    Row `num_buckets + b` is for a query `b` buckets behind the key.
    """

    config: EncoderConfig

    @nn.compact
    def __call__(self) -> Array:
        cfg = self.config
        table = layers.param_with_axes(
            "embedding",
            nn.initializers.normal(cfg.initializer_range),
            (2 * cfg.num_buckets, cfg.emb_dim),
            jnp.float32,
            axes=("relpos_buckets", "embed"),
        )
        return layers.CenteredLayerNorm(cfg.norm_epsilon, cfg.dtype, name="layer_norm")(table)


def buckets(relative: np.ndarray, num_buckets: int, max_distance: int) -> np.ndarray:
    """The bucket of each distance, between `-num_buckets` and `num_buckets`; both have the same sign.

    Distances up to half of the buckets have one each; the others grow with the logarithm, and `max_distance - 1` is in
    the last one before `num_buckets`.
    """
    middle = num_buckets // 2
    size = np.abs(relative)
    # In float32, as transformers computes them: a distance may lie at the border of two.
    share = np.log(np.maximum(size, middle).astype(np.float32) / np.float32(middle))
    share = share / np.log(np.float32((max_distance - 1) / middle))
    far = np.ceil(share * np.float32(middle - 1)).astype(np.int32) + middle
    return np.where(size <= middle, relative, np.sign(relative) * far)


def logits(config: EncoderConfig, query: Array, key: Array, queries: Array, keys: Array) -> Array:
    """What the distances add to the products of queries and keys, float32 `[batch, heads, queries, keys]`.

    Args:
      query, key: `[batch, length, heads, kv]`, the first divided by the square root of all products' size.
      queries, keys: of the buckets, `[2 * num_buckets, heads, kv]`, not divided.
    """
    length, dtype = query.shape[1], config.attention_weights_dtype
    # By key - query, from -(length - 1) on; buckets are of query - key.
    relative = np.arange(length - 1, -length, -1)
    places = buckets(relative, config.num_buckets, config.max_distance) + config.num_buckets
    places = np.clip(places, 0, 2 * config.num_buckets - 1)
    queries = queries / jnp.sqrt(NUM_PRODUCTS * config.head_dim).astype(config.dtype)
    to_position = products.einsum("bqhd,rhd->bhqr", query, keys[places], dtype, jnp.float32)
    from_position = products.einsum("bkhd,rhd->bhkr", key, queries[places[::-1]], dtype, jnp.float32)
    return distances.to_keys(to_position) + jnp.swapaxes(distances.to_keys(from_position), -1, -2)
