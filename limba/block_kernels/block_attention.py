"""Fused attention with a layout of blocks: where it serves, and its call on a mesh."""

import functools

import jax

from limba.block_kernels import tile_pairs
from limba.block_kernels.tile_pairs import Layout
from limba.kernels import attention, target

Array = jax.Array

# Queries and keys of a tile.
_TILES = {"tpu": 128}
_TILE = 64


def is_fused(config: attention.KernelConfig, layout: Layout) -> bool:
    """Whether kernels of ours compute it on the device that is traced for; see `attention.is_fused`.

    Not with blocks that do not fill their tiles, and not where heads with layouts of their own are on several devices.
    """
    tile = _TILES.get(target.platform(), _TILE)
    if not attention.is_fused(config.kernels, config.head_dim) or not tile_pairs.fits(layout.block, tile):
        return False
    return not layout.differs_by_head or attention.devices_of("heads") == 1


def attend(query: Array, key: Array, value: Array, segments: Array, layout: Layout) -> Array:
    """The values that each query attends to, `[batch, length, heads, head_dim]`; see `block_attention_gpu`."""
    arrays = ((x, attention.ARRAY) for x in (query, key, value))
    return attention.on_each_device(functools.partial(_attend, layout=layout), *arrays, (segments, ("batch", None)))


def _attend(query: Array, key: Array, value: Array, segments: Array, *, layout: Layout) -> Array:
    if target.platform() == "tpu":
        from limba.block_kernels.block_attention_tpu import attention as call
    else:
        from limba.block_kernels.block_attention_gpu import attention as call
    return call(query, key, value, segments, layout, interpret=target.platform() == "cpu")
