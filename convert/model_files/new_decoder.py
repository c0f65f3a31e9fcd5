"""A decoder for the encoder of a T5 alone: the tensors of a new network, drawn when they are read."""

import functools
import zlib

import numpy as np

from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.convert.families import heads, networks
from limba.convert.tensors.table import Shape
from limba.network.t5 import T5Config


def tensors(config: T5Config, dtype: np.dtype) -> dict[str, SavedTensor]:
    """By Limba's names, with the variances of `limba.network.t5`; each tensor's name is its seed."""
    found = {}
    for name, shape in networks.shapes(config, heads.OF_T5).items():
        if name.startswith("decoder/"):
            found[name] = SavedTensor(shape, dtype, functools.partial(_read, name, shape, config.head_dim, dtype))
    return found


def _read(name: str, shape: Shape, head_dim: int, dtype: np.dtype, index: Index) -> np.ndarray:
    if name.endswith("/scale"):
        return np.ones(shape, dtype)[index]
    variance = 2 / sum(shape) if name.endswith("/rel_embedding") else 1 / shape[0]
    if "/query/" in name:
        variance /= head_dim
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return (rng.standard_normal(shape, np.float32) * np.float32(variance**0.5)).astype(dtype)[index]
