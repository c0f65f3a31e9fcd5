"""Fused attention: which kernels a device has, and their call on a mesh.

`Visible` and `DistanceBias` stand for a mask and a bias of the size queries x keys, which the kernels never make.
"""

import functools
import logging
import math
from collections.abc import Callable
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp
from flax.linen import partitioning as nn_partitioning
from jax.sharding import PartitionSpec

from limba.kernels import attention_cudnn, target

Array = jax.Array
logger = logging.getLogger(__name__)


@flax.struct.dataclass
class Visible:
    """What each query may look at: keys of its own segment, and if `causal` none that come after it.

    Attributes:
      queries, keys: int32 `[batch, length]`, the segment of each position; padding is 0, a segment of its own.
      prefix: bool `[batch, length]` of self-attention: positions that see each other although it is causal.
      by_cudnn: cuDNN computes it.
    """

    queries: Array
    keys: Array
    prefix: Array | None = None
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    by_cudnn: bool = flax.struct.field(pytree_node=False, default=False)


@flax.struct.dataclass
class DistanceBias:
    """A bias that depends on key - query: float32 `[heads, queries + keys - 1]`, from -(queries - 1) on."""

    table: Array


class KernelConfig(Protocol):
    """The fields of `t5.T5Config` that decide about kernels."""

    @property
    def dtype(self) -> Any: ...

    @property
    def kernels(self) -> str: ...

    @property
    def head_dim(self) -> int: ...


def visible(
    config: KernelConfig,
    tokens: Array,
    key_tokens: Array,
    segments: Array | None,
    key_segments: Array | None,
    *,
    prefix: Array | None = None,
    causal: bool = False,
) -> Visible | None:
    """What the kernels take in place of a mask; None where they are not used.

    Args:
      tokens, key_tokens: `[batch, length]`, 0 for padding.
      segments, key_segments: of packed batches.
      prefix, causal: see `Visible`.
    """
    by_cudnn = False
    if config.kernels == "cudnn" and target.wants_kernels(config.kernels):
        is_plain = segments is None and key_segments is None and prefix is None
        lengths = tokens.shape[-1], key_tokens.shape[-1]
        by_cudnn = _is_for_cudnn(config.dtype, config.head_dim, lengths, is_plain)
    if not by_cudnn and not is_fused(config.kernels, config.head_dim):
        return None
    of_queries, of_keys = (
        (tokens > 0).astype(jnp.int32) * (1 if segments is None else segments)
        for tokens, segments in ((tokens, segments), (key_tokens, key_segments))
    )
    return Visible(of_queries, of_keys, prefix, causal, by_cudnn)


def is_fused(choice: str, head_dim: int) -> bool:
    """Whether attention is computed by kernels of ours on the device that is traced for; see `target.wants_kernels`."""
    return target.wants_kernels(choice) and _serves(head_dim, target.platform())


@functools.cache  # said once
def _serves(head_dim: int, platform: str) -> bool:
    if head_dim < 16 or head_dim & (head_dim - 1):
        logger.info("Attention by XLA: the fused kernels need a head_dim that is a power of 2, and it is %d.", head_dim)
        return False
    if platform != "cpu":
        words = "Attention by fused kernels (limba.kernels.attention_%s); T5Config.kernels = 'xla' does without."
        logger.info(words, platform)
    return True


@functools.cache  # said once
def _say_cudnn(reason: str) -> None:
    if reason:
        logger.info("Attention is not cuDNN's: %s.", reason)
    else:
        logger.info("Attention by cuDNN; T5Config.kernels = 'auto' takes Limba's kernels.")


def _is_for_cudnn(dtype: Any, head_dim: int, lengths: tuple[int, int], is_plain: bool) -> bool:
    """Whether cuDNN computes attention that was asked of it; what it cannot do is done as with "auto"."""
    if target.platform() != "gpu":
        reason = "it is for GPUs"
    else:
        reason = attention_cudnn.reason_against(dtype, head_dim, lengths, is_plain)
    _say_cudnn(reason)
    return not reason


def attend(query: Array, key: Array, value: Array, visible: Visible, bias: DistanceBias | None) -> Array:
    """The values that each query attends to, `[batch, queries, heads, head_dim]`; see `attention_gpu.attention`."""
    table = None if bias is None else bias.table
    call = functools.partial(_attend, causal=visible.causal, by_cudnn=visible.by_cudnn)
    of_row = ("batch", None)
    by_axes = (
        *((x, ARRAY) for x in (query, key, value)),
        (table, ("heads", None)),
        *((x, of_row) for x in (visible.queries, visible.keys, visible.prefix)),
    )
    return on_each_device(call, *by_axes)


Axes = tuple[str | None, ...]
ARRAY: Axes = ("batch", "length", "heads", "kv")


def on_each_device(call: Callable[..., Array], *arguments: tuple[Array | None, Axes]) -> Array:
    """Calls a kernel on each device of the mesh for its own rows and heads, because the compiler cannot split a kernel.

    Args:
      arguments: arrays, or None, with the logical axes that they share with queries. Those have `ARRAY`, and so has
        the result.
    """
    arrays = [array for array, _ in arguments]
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return call(*arrays)
    specs = tuple(None if array is None else _spec(axes) for array, axes in arguments)
    return jax.shard_map(call, in_specs=specs, out_specs=_spec(ARRAY), check_vma=False)(*arrays)


def devices_of(axis: str) -> int:
    """How many devices share an axis of `ARRAY`."""
    mesh, (of_mesh,) = jax.sharding.get_abstract_mesh(), _spec((axis,))
    if mesh.empty or of_mesh is None:
        return 1
    return math.prod(mesh.shape[name] for name in ([of_mesh] if isinstance(of_mesh, str) else of_mesh))


def _spec(axes: Axes) -> PartitionSpec:
    found = (*(nn_partitioning.logical_to_mesh_axes(ARRAY) or ()), None, None, None, None)
    of_mesh = dict(zip(ARRAY, found, strict=False))
    return PartitionSpec(*(None if axis is None else of_mesh[axis] for axis in axes))


def _attend(query, key, value, table, query_segments, key_segments, prefix, *, causal, by_cudnn):
    if by_cudnn:
        return attention_cudnn.attention(query, key, value, table, (query_segments, key_segments), causal=causal)
    # Imported where they are used: Pallas takes 0.2 s, and CPUs do without.
    if target.platform() == "tpu":
        from limba.kernels.attention_tpu import attention
    else:
        from limba.kernels.attention_gpu import attention
    return attention(
        query,
        key,
        value,
        table,
        (query_segments, key_segments),
        prefix,
        causal=causal,
        interpret=target.platform() == "cpu",
    )


def drop_values(value: Array, rng: Array, rate: float) -> Array:
    """T5X's dropout of attention weights: all queries of a row drop the same keys, so their values can be dropped.

    Args:
      value: `[batch, keys, heads, head_dim]`.
    """
    keep = 1.0 - rate
    batch, keys, heads, _ = value.shape
    kept = jax.random.bernoulli(rng, keep, (batch, heads, 1, keys))
    return value * (jnp.moveaxis(kept, (1, 3), (2, 1)).astype(value.dtype) / jnp.asarray(keep, value.dtype))
