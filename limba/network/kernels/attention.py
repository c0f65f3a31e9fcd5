"""The door to fused attention: what its kernels take in place of masks, and their call on a mesh.

`Visible` and `DistanceBias` stand for a mask and a bias of the size queries x keys, which the kernels never make.
"""

import functools
import logging
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp
from flax.linen import partitioning as nn_partitioning
from jax.sharding import PartitionSpec

from limba.addons import table as addons
from limba.devices import target

Array = jax.Array
logger = logging.getLogger(__name__)


@flax.struct.dataclass
class Visible:
    """What each query may look at: keys of its own segment, and if `causal` none that come after it.

    Attributes:
      queries, keys: int32 `[batch, length]`, the segment of each position; padding is 0, a segment of its own.
      prefix: bool `[batch, length]` of self-attention: positions that see each other although it is causal.
      kernel: the name of what computes it.
    """

    queries: Array
    keys: Array
    prefix: Array | None = None
    causal: bool = flax.struct.field(pytree_node=False, default=False)
    kernel: str = flax.struct.field(pytree_node=False, default="")


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
    def num_heads(self) -> int: ...

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
    has_bias: bool = False,
) -> Visible | None:
    """What the kernels take in place of a mask; None where they are not used.

    Args:
      tokens, key_tokens: `[batch, length]`, 0 for padding.
      segments, key_segments: of packed batches.
      prefix, causal: see `Visible`.
      has_bias: whether `attend` will be called with one.
    """
    is_packed = segments is not None or key_segments is not None
    lengths = tokens.shape[-1], key_tokens.shape[-1]
    kind = {"has_bias": has_bias, "is_packed": is_packed, "has_prefix": prefix is not None, "causal": causal}
    part = _part() if target.wants_kernels(config.kernels) else None
    if part is None or (kernel := part.choose(config, lengths, **kind)) is None:
        return None
    of_queries, of_keys = (
        (tokens > 0).astype(jnp.int32) * (1 if segments is None else segments)
        for tokens, segments in ((tokens, segments), (key_tokens, key_segments))
    )
    return Visible(of_queries, of_keys, prefix, causal, kernel)


def is_fused(choice: str, head_dim: int) -> bool:
    """Whether there are kernels of ours for attention on the device that is traced for; see `target.wants_kernels`."""
    return target.wants_kernels(choice) and _part() is not None and _serves(head_dim, target.platform())


@functools.cache  # said once
def _part() -> ModuleType | None:
    """The add-on's module that chooses and calls them."""
    if (found := next(addons.parts("attention"), None)) is None:
        logger.info("Attention by XLA: this Limba has no add-on with fused kernels.")
    return found


# A tile of 64 x 256 needs more than the 227 KB of shared memory that a core of an H100 has.
_WIDEST_ON_GPUS = 128


@functools.cache  # said once
def _serves(head_dim: int, platform: str) -> bool:
    if head_dim < 16 or head_dim & (head_dim - 1):
        logger.info("Attention by XLA: the fused kernels need a head_dim that is a power of 2, and it is %d.", head_dim)
        return False
    if platform == "gpu" and head_dim > _WIDEST_ON_GPUS:
        message = "Attention by XLA: the fused kernels of GPUs need a head_dim of at most %d, and it is %d."
        logger.info(message, _WIDEST_ON_GPUS, head_dim)
        return False
    return True


def attend(query: Array, key: Array, value: Array, visible: Visible, bias: DistanceBias | None) -> Array:
    """The values that each query attends to, `[batch, queries, heads, head_dim]`."""
    part = _part()
    assert part is not None
    table = None if bias is None else bias.table
    call = functools.partial(part.attend, causal=visible.causal, kernel=visible.kernel)
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


def drop_values(value: Array, rng: Array, rate: float) -> Array:
    """T5X's dropout of attention weights: all queries of a row drop the same keys, so their values can be dropped.

    Args:
      value: `[batch, keys, heads, head_dim]`.
    """
    keep = 1.0 - rate
    batch, keys, heads, _ = value.shape
    kept = jax.random.bernoulli(rng, keep, (batch, heads, 1, keys))
    return value * (jnp.moveaxis(kept, (1, 3), (2, 1)).astype(value.dtype) / jnp.asarray(keep, value.dtype))
