"""Drawn inputs of attention, and what XLA makes of them: `device_check` compares kernels with it."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba.network.kernels.device_check import Arrays

Array = jax.Array
_ROWS = 3  # several that share a part of the bias' gradient on GPUs


def draw_segments(rng: np.random.Generator, length: int, is_packed: bool) -> np.ndarray:
    """Int32 `[rows, length]`, 0 for the padding at the end: none in the first row, and nearly all of the last."""
    padding = np.array([[0], [rng.integers(length // 4, length // 2)], [length - rng.integers(3, 6)]])
    segments = np.sort(rng.integers(1, 4, (_ROWS, length))) if is_packed else 1
    return np.where(np.arange(length) < length - padding, segments, 0).astype(np.int32)


def draw_heads(
    rng: np.random.Generator, of_queries: np.ndarray, keys: int, heads: int, head_dim: int, dtype: Any
) -> dict[str, Array]:
    """Queries, keys and values. Logits are about 2; those of padding are hundreds, which must not give NaN."""
    rows, queries = of_queries.shape
    scale = math.sqrt(2.0) / head_dim**0.25
    drawn = {
        "queries": scale * rng.normal(size=(rows, queries, heads, head_dim)),
        "keys": scale * rng.normal(size=(rows, keys, heads, head_dim)),
        "values": rng.normal(size=(rows, keys, heads, head_dim)),
    }
    drawn["queries"] *= np.where(of_queries == 0, 200.0, 1.0)[:, :, None, None]
    return {name: jnp.asarray(x, dtype) for name, x in drawn.items()}


def plain_attention(arrays: Arrays, mask: np.ndarray, bias: Array | None = None) -> Array:
    """Attention by XLA, `[batch, queries, heads, head_dim]`, with products in the type of the arrays.

    Args:
      arrays: queries, keys and values, of `draw_heads`.
      mask: bool, broadcast to `[batch, heads, queries, keys]` as the bias is.
    """
    logits = jnp.einsum("bqhd,bkhd->bhqk", arrays["queries"], arrays["keys"], preferred_element_type=jnp.float32)
    logits = logits if bias is None else logits + bias
    weights = jax.nn.softmax(jnp.where(mask, logits, -1e30)).astype(arrays["values"].dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, arrays["values"])


def counted(attended: Array, of_queries: Any, mask: Any) -> dict[str, Array]:
    """What a network uses of attention: not what queries of padding see, nor those without any key."""
    is_counted = (of_queries > 0) & mask.any((1, 3))
    return {"attended": attended * is_counted[:, :, None, None].astype(attended.dtype)}
