"""Fused attention: which kernels a device has, and their call on a mesh.

`Visible` and `DistanceBias` stand for a mask and a bias of the size queries x keys, which the kernels never make.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Callable
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import partitioning as nn_partitioning
from jax.sharding import PartitionSpec

from limba.addons import table as addons
from limba.devices import target
from limba.network.kernels import device_check

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
    for kernel in _kernels(config, lengths, is_plain=not is_packed and prefix is None):
        if device_check.is_right(_Case.of(kernel, config, lengths, **kind)):
            break
    else:
        return None
    of_queries, of_keys = (
        (tokens > 0).astype(jnp.int32) * (1 if segments is None else segments)
        for tokens, segments in ((tokens, segments), (key_tokens, key_segments))
    )
    return Visible(of_queries, of_keys, prefix, causal, kernel == _CUDNN)


def is_fused(choice: str, head_dim: int) -> bool:
    """Whether there are kernels of ours for attention on the device that is traced for; see `target.wants_kernels`."""
    return target.wants_kernels(choice) and _serves(head_dim, target.platform())


_CUDNN = "attention_cudnn"


def _fused(platform: str) -> str:
    """The part of an add-on that has the kernels; those of GPUs also run on CPUs, interpreted."""
    return "attention_tpu" if platform == "tpu" else "attention_gpu"


def _kernels(config: KernelConfig, lengths: tuple[int, int], is_plain: bool) -> list[str]:
    """Modules that can compute it on the device that is traced for, the preferred one first."""
    found = []
    if config.kernels == "cudnn" and target.wants_kernels(config.kernels):
        found += [_CUDNN] * _is_for_cudnn(config.dtype, config.head_dim, lengths, is_plain)
    if is_fused(config.kernels, config.head_dim):
        found.append(_fused(target.platform()))
    return found


# A tile of 64 x 256 needs more than the 227 KB of shared memory that a core of an H100 has.
_WIDEST_ON_GPUS = 128


@functools.cache  # said once
def _serves(head_dim: int, platform: str) -> bool:
    if not addons.has(_fused(platform)):
        logger.info("Attention by XLA: this Limba has no add-on with fused kernels.")
        return False
    if head_dim < 16 or head_dim & (head_dim - 1):
        logger.info("Attention by XLA: the fused kernels need a head_dim that is a power of 2, and it is %d.", head_dim)
        return False
    if platform == "gpu" and head_dim > _WIDEST_ON_GPUS:
        message = "Attention by XLA: the fused kernels of GPUs need a head_dim of at most %d, and it is %d."
        logger.info(message, _WIDEST_ON_GPUS, head_dim)
        return False
    return True


@functools.cache  # said once
def _say_why_not_cudnn(reason: str) -> None:
    logger.info("Attention is not cuDNN's: %s.", reason)


def _is_for_cudnn(dtype: Any, head_dim: int, lengths: tuple[int, int], is_plain: bool) -> bool:
    """Whether cuDNN can compute attention that was asked of it; what it cannot do is done as with "auto"."""
    if target.platform() != "gpu":
        reason = "it is for GPUs"
    elif (kernel := next(addons.parts(_CUDNN), None)) is None:
        reason = "this Limba has no add-on with it"
    else:
        reason = kernel.reason_against(dtype, head_dim, lengths, is_plain)
    if reason:
        _say_why_not_cudnn(reason)
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
    # Imported where it is used: Pallas takes 0.2 s, and CPUs do without.
    (kernel,) = addons.parts(_CUDNN if by_cudnn else _fused(target.platform()))
    if by_cudnn:
        return kernel.attention(query, key, value, table, (query_segments, key_segments), causal=causal)
    return kernel.attention(
        query,
        key,
        value,
        table,
        (query_segments, key_segments),
        prefix,
        causal=causal,
        interpret=target.platform() == "cpu",
    )


# ------------------------------------------------- on the device at hand ---------------------------------------------

_ROWS = 3  # several that share a part of the bias' gradient on GPUs
# Lengths that stand for all up to a power of two, so that a TPU's tiles have the size that they have in the run. Each
# has a tile in part, the last one several tiles of a TPU too.
_LENGTHS = {128: 120, 256: 248, math.inf: 576}


@dataclasses.dataclass(frozen=True)
class _Case:
    """A kind of attention for `device_check`; the fields are those of `attend` on one device."""

    kernel: str
    dtype: str
    heads: int
    head_dim: int
    queries: int
    keys: int
    has_bias: bool
    is_packed: bool
    has_prefix: bool
    causal: bool

    @classmethod
    def of(cls, kernel: str, config: KernelConfig, lengths: tuple[int, int], **kind: bool) -> "_Case":
        queries, keys = (next(x for most, x in _LENGTHS.items() if length <= most) for length in lengths)
        heads = config.num_heads // devices_of("heads")
        return cls(kernel, jnp.dtype(config.dtype).name, heads, config.head_dim, queries, keys, **kind)

    def __str__(self) -> str:
        words = {"with bias": self.has_bias, "packed": self.is_packed, "causal": self.causal, "prefix": self.has_prefix}
        sizes = f"{self.heads} heads of {self.head_dim}, {self.dtype}, {self.queries} x {self.keys}"
        return ", ".join([sizes, *(word for word, is_so in words.items() if is_so)])

    def inputs(self, rng: np.random.Generator) -> tuple[device_check.Arrays, tuple[Any, ...]]:
        of_keys = draw_segments(rng, self.keys, self.is_packed)
        # Other segments than those of keys only where no place of a row is compared with another.
        is_alike = self.has_bias or self.causal
        of_queries = of_keys if is_alike else draw_segments(rng, self.queries, self.is_packed)
        if self.is_packed and not is_alike:
            of_queries[0, :3] = 9  # a packed target without inputs
        ends = [[self.keys // 2], [self.keys // 5], [2]]  # in the second segment of a packed row, in the first one
        prefix = np.arange(self.keys) < np.array(ends) if self.has_prefix else None
        arrays = draw_heads(rng, of_queries, self.keys, self.heads, self.head_dim, self.dtype)
        if self.has_bias:
            arrays["bias"] = jnp.asarray(rng.normal(size=(self.heads, self.queries + self.keys - 1)), jnp.float32)
        return arrays, (of_queries, of_keys, prefix)

    def by_kernel(self, arrays: device_check.Arrays, of_queries: Any, of_keys: Any, prefix: Any) -> device_check.Arrays:
        query_segments, key_segments, prefix_of_rows = (
            None if x is None else jnp.asarray(x) for x in (of_queries, of_keys, prefix)
        )
        attended = _attend(
            query=arrays["queries"],
            key=arrays["keys"],
            value=arrays["values"],
            table=arrays.get("bias"),
            query_segments=query_segments,
            key_segments=key_segments,
            prefix=prefix_of_rows,
            causal=self.causal,
            by_cudnn=self.kernel == _CUDNN,
        )
        return counted(attended, of_queries, self._mask(of_queries, of_keys, prefix))

    def by_xla(self, arrays: device_check.Arrays, of_queries: Any, of_keys: Any, prefix: Any) -> device_check.Arrays:
        mask = self._mask(of_queries, of_keys, prefix)
        bias = arrays.get("bias")
        if bias is not None:
            bias = bias[:, self._distances() + self.queries - 1]
        return counted(plain_attention(arrays, mask, bias), of_queries, mask)

    def _distances(self) -> np.ndarray:
        """`[queries, keys]`"""
        return np.arange(self.keys) - np.arange(self.queries)[:, None]

    def _mask(self, of_queries: Any, of_keys: Any, prefix: Any) -> np.ndarray:
        """Bool `[batch, 1, queries, keys]`."""
        mask = of_queries[:, :, None] == of_keys[:, None, :]
        if self.causal:
            not_after = self._distances() <= 0
            mask &= not_after if prefix is None else not_after | (prefix[:, :, None] & prefix[:, None, :])
        return mask[:, None]


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


def plain_attention(arrays: device_check.Arrays, mask: np.ndarray, bias: Array | None = None) -> Array:
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


def drop_values(value: Array, rng: Array, rate: float) -> Array:
    """T5X's dropout of attention weights: all queries of a row drop the same keys, so their values can be dropped.

    Args:
      value: `[batch, keys, heads, head_dim]`.
    """
    keep = 1.0 - rate
    batch, keys, heads, _ = value.shape
    kept = jax.random.bernoulli(rng, keep, (batch, heads, 1, keys))
    return value * (jnp.moveaxis(kept, (1, 3), (2, 1)).astype(value.dtype) / jnp.asarray(keep, value.dtype))
