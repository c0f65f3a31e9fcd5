"""Which kernel computes attention on the device that is traced for, and the comparison with XLA before its use."""

import dataclasses
import functools
import importlib
import logging
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba.addons.kernels import attention_cudnn
from limba.devices import target
from limba.network.kernels import attention, device_check, drawn_attention

Array = jax.Array
logger = logging.getLogger(__name__)

_CUDNN, _TPU, _GPU = "attention_cudnn", "attention_tpu", "attention_gpu"
comparisons = device_check.results


def choose(
    config: attention.KernelConfig, lengths: tuple[int, int], *, is_packed: bool, has_prefix: bool, **kind: bool
) -> str | None:
    """The kernel for queries and keys of these lengths, the preferred one that is right here; None where XLA computes.

    Args:
      is_packed, has_prefix, kind: fields of `Case`.
    """
    kind |= {"is_packed": is_packed, "has_prefix": has_prefix}
    for kernel in _kernels(config, lengths, is_plain=not is_packed and not has_prefix):
        if device_check.is_right(Case.of(kernel, config, lengths, **kind)):
            return kernel
    return None


def _kernels(config: attention.KernelConfig, lengths: tuple[int, int], is_plain: bool) -> list[str]:
    """Those that can compute it, the preferred one first; those of GPUs also run on CPUs, interpreted."""
    found = []
    if config.kernels == "cudnn":
        found += [_CUDNN] * _is_for_cudnn(config.dtype, config.head_dim, lengths, is_plain)
    if attention.is_fused(config.kernels, config.head_dim):
        found.append(_TPU if target.platform() == "tpu" else _GPU)
    return found


@functools.cache  # said once
def _say_why_not_cudnn(reason: str) -> None:
    logger.info("Attention is not cuDNN's: %s.", reason)


def _is_for_cudnn(dtype: Any, head_dim: int, lengths: tuple[int, int], is_plain: bool) -> bool:
    """Whether cuDNN can compute attention that was asked of it; what it cannot do is done as with "auto"."""
    if target.platform() == "gpu":
        reason = attention_cudnn.reason_against(dtype, head_dim, lengths, is_plain)
    else:
        reason = "it is for GPUs"
    if reason:
        _say_why_not_cudnn(reason)
    return not reason


def attend(
    query: Array,
    key: Array,
    value: Array,
    table: Array | None,
    query_segments: Array,
    key_segments: Array,
    prefix: Array | None,
    *,
    causal: bool,
    kernel: str,
) -> Array:
    """The values that each query attends to, on one device; see `attention_gpu.attention`."""
    segments = query_segments, key_segments
    if kernel == _CUDNN:
        return attention_cudnn.attention(query, key, value, table, segments, causal=causal)
    # Imported where it is used: Pallas takes 0.2 s, and CPUs do without.
    module = importlib.import_module(f"limba.addons.kernels.{kernel}")
    is_cpu = target.platform() == "cpu"
    return module.attention(query, key, value, table, segments, prefix, causal=causal, interpret=is_cpu)


# Lengths that stand for all up to a power of two, so that a TPU's tiles have the size that they have in the run. Each
# has a tile in part, the last one several tiles of a TPU too.
_LENGTHS = {128: 120, 256: 248, math.inf: 576}


@dataclasses.dataclass(frozen=True)
class Case:
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
    def of(cls, kernel: str, config: attention.KernelConfig, lengths: tuple[int, int], **kind: bool) -> "Case":
        queries, keys = (next(x for most, x in _LENGTHS.items() if length <= most) for length in lengths)
        heads = config.num_heads // attention.devices_of("heads")
        return cls(kernel, jnp.dtype(config.dtype).name, heads, config.head_dim, queries, keys, **kind)

    def __str__(self) -> str:
        words = {"with bias": self.has_bias, "packed": self.is_packed, "causal": self.causal, "prefix": self.has_prefix}
        sizes = f"{self.heads} heads of {self.head_dim}, {self.dtype}, {self.queries} x {self.keys}"
        return ", ".join([sizes, *(word for word, is_so in words.items() if is_so)])

    def inputs(self, rng: np.random.Generator) -> tuple[device_check.Arrays, tuple[Any, ...]]:
        of_keys = drawn_attention.draw_segments(rng, self.keys, self.is_packed)
        # Other segments than those of keys only where no place of a row is compared with another.
        is_alike = self.has_bias or self.causal
        of_queries = of_keys if is_alike else drawn_attention.draw_segments(rng, self.queries, self.is_packed)
        if self.is_packed and not is_alike:
            of_queries[0, :3] = 9  # a packed target without inputs
        ends = [[self.keys // 2], [self.keys // 5], [2]]  # in the second segment of a packed row, in the first one
        prefix = np.arange(self.keys) < np.array(ends) if self.has_prefix else None
        arrays = drawn_attention.draw_heads(rng, of_queries, self.keys, self.heads, self.head_dim, self.dtype)
        if self.has_bias:
            arrays["bias"] = jnp.asarray(rng.normal(size=(self.heads, self.queries + self.keys - 1)), jnp.float32)
        return arrays, (of_queries, of_keys, prefix)

    def by_kernel(self, arrays: device_check.Arrays, of_queries: Any, of_keys: Any, prefix: Any) -> device_check.Arrays:
        attended = attend(
            query=arrays["queries"],
            key=arrays["keys"],
            value=arrays["values"],
            table=arrays.get("bias"),
            query_segments=jnp.asarray(of_queries),
            key_segments=jnp.asarray(of_keys),
            prefix=None if prefix is None else jnp.asarray(prefix),
            causal=self.causal,
            kernel=self.kernel,
        )
        return drawn_attention.counted(attended, of_queries, self._mask(of_queries, of_keys, prefix))

    def by_xla(self, arrays: device_check.Arrays, of_queries: Any, of_keys: Any, prefix: Any) -> device_check.Arrays:
        mask = self._mask(of_queries, of_keys, prefix)
        bias = arrays.get("bias")
        if bias is not None:
            bias = bias[:, self._distances() + self.queries - 1]
        return drawn_attention.counted(drawn_attention.plain_attention(arrays, mask, bias), of_queries, mask)

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
