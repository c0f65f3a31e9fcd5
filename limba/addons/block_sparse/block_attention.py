"""Fused attention with a layout of blocks: where it serves, and its call on a mesh."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba.addons.block_sparse import tile_pairs
from limba.addons.block_sparse.tile_pairs import Layout
from limba.devices import target
from limba.network.kernels import attention, device_check, drawn_attention

Array = jax.Array

# Queries and keys of a tile.
_TILES = {"tpu": 128}
_TILE = 64


def is_fused(config: attention.KernelConfig, layout: Layout, length: int) -> bool:
    """Whether kernels of ours compute rows of this length on the device that is traced for; see `attention.is_fused`.

    Not with blocks that do not fill their tiles, and not where heads with layouts of their own are on several devices.
    """
    tile = _TILES.get(target.platform(), _TILE)
    if not attention.is_fused(config.kernels, config.head_dim) or not tile_pairs.fits(layout.block, tile):
        return False
    devices = attention.devices_of("heads")
    if layout.differs_by_head and devices > 1:
        return False
    kernel = "block_attention_tpu" if target.platform() == "tpu" else "block_attention_gpu"
    dtype, heads = jnp.dtype(config.dtype).name, config.num_heads // devices
    return device_check.is_right(_Case(kernel, dtype, heads, config.head_dim, min(length, _LONGEST), layout))


def attend(query: Array, key: Array, value: Array, segments: Array, layout: Layout) -> Array:
    """The values that each query attends to, `[batch, length, heads, head_dim]`; see `block_attention_gpu`."""
    arrays = ((x, attention.ARRAY) for x in (query, key, value))
    return attention.on_each_device(functools.partial(_attend, layout=layout), *arrays, (segments, ("batch", None)))


def _attend(query: Array, key: Array, value: Array, segments: Array, *, layout: Layout) -> Array:
    if target.platform() == "tpu":
        from limba.addons.block_sparse.block_attention_tpu import attention as call
    else:
        from limba.addons.block_sparse.block_attention_gpu import attention as call
    return call(query, key, value, segments, layout, interpret=target.platform() == "cpu")


# Of a row for `device_check`: several tiles of each device, and the last one in part.
_LONGEST = 576


@dataclasses.dataclass(frozen=True)
class _Case:
    """A kind of attention for `device_check`."""

    kernel: str
    dtype: str
    heads: int
    head_dim: int
    length: int
    layout: Layout

    def __str__(self) -> str:
        by_head = ", by head" if self.layout.differs_by_head else ""
        blocks = f"blocks of {self.layout.block}{by_head}"
        return f"{self.heads} heads of {self.head_dim}, {self.dtype}, {self.length} tokens, {blocks}"

    def inputs(self, rng: np.random.Generator) -> tuple[device_check.Arrays, tuple[Any, ...]]:
        segments = drawn_attention.draw_segments(rng, self.length, is_packed=True)
        drawn = drawn_attention.draw_heads(rng, segments, self.length, self.heads, self.head_dim, self.dtype)
        return drawn, (segments,)

    def by_kernel(self, arrays: device_check.Arrays, segments: Any) -> device_check.Arrays:
        q, k, v = (arrays[name] for name in ("queries", "keys", "values"))
        attended = _attend(q, k, v, jnp.asarray(segments), layout=self.layout)
        return drawn_attention.counted(attended, segments, self._mask(segments))

    def by_xla(self, arrays: device_check.Arrays, segments: Any) -> device_check.Arrays:
        mask = self._mask(segments)
        return drawn_attention.counted(drawn_attention.plain_attention(arrays, mask), segments, mask)

    def _mask(self, segments: Any) -> np.ndarray:
        """Bool `[batch, heads or 1, queries, keys]`."""
        block, length = self.layout.block, self.length
        seen = np.kron(self.layout.present(self.layout.num_blocks(length)), np.ones((block, block), bool))
        return (segments[:, :, None] == segments[:, None, :])[:, None] & seen[None, :, :length, :length]
