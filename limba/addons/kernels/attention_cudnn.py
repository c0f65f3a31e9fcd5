"""Attention by cuDNN, through `jax.nn.dot_product_attention`: for GPUs, bf16, rows that are not packed."""

import logging
from typing import Any, Literal

import jax
import jax.numpy as jnp

from limba.network.kernels import distances

Array = jax.Array
logger = logging.getLogger(__name__)

# Of all GPUs with bf16; Hopper has 256.
_LARGEST_HEAD = 128


def reason_against(dtype: Any, head_dim: int, lengths: tuple[int, int], is_plain: bool) -> str:
    """Why cuDNN cannot compute it with its gradients; empty where it can.

    Args:
      lengths: of queries and keys.
      is_plain: rows are not packed and have no prefix. Segments would have to be found by their offsets, and a prefix
        be a mask of queries x keys.
    """
    for is_missing, reason in (
        (not is_plain, "rows are packed or have a prefix"),
        (jnp.dtype(dtype) != jnp.bfloat16, f"it computes in bfloat16, and dtype is {jnp.dtype(dtype).name}"),
        (head_dim % 8 or head_dim > _LARGEST_HEAD, f"head_dim is {head_dim}, no multiple of 8 up to {_LARGEST_HEAD}"),
        (any(length % 2 for length in lengths), f"a length of {lengths} is odd"),
    ):
        if is_missing:
            return reason
    return ""


def attention(
    query: Array,
    key: Array,
    value: Array,
    table: Array | None,
    segments: tuple[Array, Array],
    *,
    causal: bool = False,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Array:
    """The values that each query attends to, `[batch, queries, heads, head_dim]`; see `attention_gpu.attention`.

    Queries of padding get zeros, but in a row of nothing but padding the first one looks at the first key: a row
    without any could be NaN.

    Args:
      table: is made the bias of all queries and keys, in bf16, which cuDNN reads.
      segments: positive for tokens, which come before all padding.
      implementation: "xla" computes the same on any device.
    """
    bias = None
    if table is not None:
        # Gradients of a float32 bias are NaN (jax#32242).
        by_row = jnp.broadcast_to(table[:, None].astype(query.dtype), (len(table), query.shape[1], table.shape[1]))
        bias = distances.to_keys(by_row)[None]
    of_queries, of_keys = (jnp.maximum(jnp.sum(x > 0, axis=1, dtype=jnp.int32), 1) for x in segments)
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias,
        scale=1.0,
        is_causal=causal,
        query_seq_lengths=of_queries,
        key_value_seq_lengths=of_keys,
        implementation=implementation,
    )
