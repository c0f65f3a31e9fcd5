"""NorT5's attention: content to content, content to place and place to content, as DeBERTa's, also to the encoder.

Places are distances between a query and a key, in buckets that widen with the distance. A bucket has a vector, and the
kernels and biases of queries and keys turn it into what queries and keys are multiplied with (arXiv:2006.03654).
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from limba.network import layers, products
from limba.network.attention import MultiHeadDotProductAttention, decodes_as_queries
from limba.network.encoders import disentangled
from limba.network.kernels import distances

Array = jax.Array

# Distances from here on are one, in every NorT5.
MAX_DISTANCE = 512
# (query places `[batch, queries]`, key places `[batch, keys]`), or where the query of a step of decoding stands.
Places = tuple[Array, Array] | Array | None


def standardized(x: Array, epsilon: float, dtype: jnp.dtype) -> Array:
    """A layer norm without parameters over the last dim, computed in float32."""
    x = x.astype(jnp.float32)
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon)).astype(dtype)


@functools.cache
def rows_of_distances(longest: int, num_buckets: int) -> np.ndarray:
    """The row of the table for each `query - key`, from -longest to longest: int32 `[2 * longest + 1]`."""
    relative = np.clip(np.arange(-longest, longest + 1), 1 - MAX_DISTANCE, MAX_DISTANCE - 1)
    found: np.ndarray = (disentangled.buckets(relative, num_buckets, MAX_DISTANCE) + num_buckets - 1).astype(np.int32)
    return found


class RelativeAttention(MultiHeadDotProductAttention):
    """Attention with distances to `inputs_kv`; all four products have biases, and queries are divided by sqrt(3 kv).

    The cache is that of the class it is derived from.

    Attributes:
      num_buckets: of distances to one side; the table has `2 * num_buckets - 1` rows.
      vectors_dropout_rate: of the vectors of buckets.
    """

    num_buckets: int = 32
    vectors_dropout_rate: float = 0.0

    @nn.compact
    def __call__(  # type: ignore[override]
        self,
        inputs_q: Array,
        inputs_kv: Array,
        vectors: Array,
        mask: Array | None,
        places: Places = None,
        *,
        decode: bool = False,
        deterministic: bool = False,
        keep_keys: bool = False,
    ) -> tuple[Array, Array | None]:
        """Attends from `inputs_q` `[batch, queries, embed]` to `inputs_kv` `[batch, keys, embed]`.

        Args:
          vectors: of the buckets, `[2 * num_buckets - 1, embed]`.
          mask: bool `[batch, 1, queries, keys]`; None for the call that makes a cache, and for self-attention with one.
          places: where queries and keys stand; None is that both count from 0.
          decode, keep_keys: see `MultiHeadDotProductAttention`.

        Returns:
          `[batch, queries, embed]`, and in a step of decoding by self-attention where its query stands, else None.

        Raises:
          ValueError: if more than one position is decoded at a time.
        """
        project_query, project_key = self._projection("query"), self._projection("key")
        drop = nn.Dropout(self.vectors_dropout_rate)
        scale = jnp.asarray((disentangled.NUM_PRODUCTS * self.head_dim) ** -0.5, self.dtype)
        query = project_query(inputs_q) * scale
        of_queries = project_query(drop(vectors, deterministic=deterministic)) * scale
        of_keys = project_key(drop(vectors, deterministic=deterministic))
        rng = self.make_rng("dropout") if self.dropout_rate > 0.0 and not deterministic else None
        keeps_encoded = not decode and self.has_variable("cache", "encoded_key")
        if not keeps_encoded:
            key, value = project_key(inputs_kv), self._projection("value")(inputs_kv)
        index: Array | None = None
        if decode and self.has_variable("cache", "cached_key"):
            index = places = self.get_variable("cache", "cache_index")
            key, value, mask, _ = self._decode_one_position(key, value, mask, None)
        elif keeps_encoded:
            key, value = self.get_variable("cache", "encoded_key"), self.get_variable("cache", "encoded_value")
        elif decode:
            self._put_cache(jnp.zeros_like(key), jnp.zeros_like(value), jnp.zeros((), jnp.int32))
        elif keep_keys:
            self.put_variable("cache", "encoded_key", jnp.moveaxis(key, 1, -1))
            self.put_variable("cache", "encoded_value", jnp.moveaxis(value, 1, -1))
        is_cached = index is not None or keeps_encoded
        if is_cached:
            query, mask = decodes_as_queries(query, mask, key.shape[0])
        elif places is not None and not isinstance(places, tuple):  # A step without kept keys.
            key, value, is_cached = jnp.moveaxis(key, 1, -1), jnp.moveaxis(value, 1, -1), True
        if is_cached:
            beams = 1 if index is None else self.get_variable("cache", "cached_by").shape[1]
            assert isinstance(places, Array)
            bias = self._of_step(query, key, of_queries, of_keys, places, beams)
        elif places is None:
            bias = self._of_distances(query, key, of_queries, of_keys)
        else:
            assert isinstance(places, tuple)
            bias = self._of_places(query, key, of_queries, of_keys, *places)
        attended = self._plain(query, key, value, mask, bias, rng, length_last=is_cached)
        return self._of_attended(attended.reshape(*inputs_q.shape[:2], *attended.shape[2:])), index

    def _of_attended(self, attended: Array) -> Array:
        width = self.num_heads * self.head_dim
        dense = layers.DenseGeneral(
            width, (-2, -1), self.dtype, self.kernel_init, ("joined_kv", "embed"), use_bias=True, name="out"
        )
        return dense(attended)

    def _projection(self, name: str) -> layers.DenseGeneral:
        """`[…, embed] -> […, heads, kv]`"""
        features, axes = (self.num_heads, self.head_dim), ("embed", "joined_kv")
        return layers.DenseGeneral(features, -1, self.dtype, self.kernel_init, axes, use_bias=True, name=name)

    # What distances add to the logits, float32 `[batch, heads, queries, keys]`. `query` is divided, and so are
    # `of_queries`; both tables are `[2 * num_buckets - 1, heads, kv]`.

    def _of_distances(self, query: Array, key: Array, of_queries: Array, of_keys: Array) -> Array:
        """All distances of rows that count from 0: a vector of each is multiplied, and nothing is gathered."""
        queries, keys = query.shape[1], key.shape[1]
        longest = max(queries, keys)
        # By key - query, from -(queries - 1) on; rows of the table are by query - key.
        rows = rows_of_distances(longest, self.num_buckets)[longest + 1 - keys : longest + queries][::-1]
        to_place = products.einsum("bqhd,rhd->bhqr", query, of_keys[rows], self.dtype, jnp.float32)
        from_place = products.einsum("bkhd,rhd->bhkr", key, of_queries[rows[::-1]], self.dtype, jnp.float32)
        return distances.to_keys(to_place) + jnp.swapaxes(distances.to_keys(from_place), -1, -2)

    def _of_places(
        self, query: Array, key: Array, of_queries: Array, of_keys: Array, query_places: Array, key_places: Array
    ) -> Array:
        """Of packed rows, whose texts begin anywhere."""
        longest = max(query.shape[1], key.shape[1])
        distance = query_places[:, :, None] - key_places[:, None, :]
        rows = jnp.asarray(rows_of_distances(longest, self.num_buckets))[distance + longest][:, None]
        to_place = products.einsum("bqhd,rhd->bhqr", query, of_keys, self.dtype, jnp.float32)
        from_place = products.einsum("bkhd,rhd->bhkr", key, of_queries, self.dtype, jnp.float32)
        from_place = jnp.take_along_axis(from_place, jnp.swapaxes(rows, -1, -2), axis=-1)
        return jnp.take_along_axis(to_place, rows, axis=-1) + jnp.swapaxes(from_place, -1, -2)

    def _of_step(self, query: Array, key: Array, of_queries: Array, of_keys: Array, place: Array, beams: int) -> Array:
        """Of queries `[examples, decodes, heads, kv]` at one place and keys as the cache has them.

        Each place of the cache has `beams` keys.
        """
        keys = key.shape[-1] // beams
        longest = MAX_DISTANCE - 1
        distance = jnp.clip(place - jnp.arange(keys), -longest, longest)
        rows = jnp.repeat(jnp.asarray(rows_of_distances(longest, self.num_buckets))[distance + longest], beams)
        to_place = products.einsum("bqhd,khd->bhqk", query, of_keys[rows], self.dtype, jnp.float32)
        from_place = products.einsum("bhdk,khd->bhk", key, of_queries[rows], self.dtype, jnp.float32)
        return to_place + from_place[:, :, None]
