"""A decoder for the encoder of a T5 alone: the tensors of a new network, drawn when they are read."""

import functools
import zlib

import numpy as np

from convert.tensors import names
from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.network.t5 import T5Config


def tensors(config: T5Config, dtype: np.dtype) -> dict[str, SavedTensor]:
    """By Limba's names, with the variances of `limba.network.t5`; each tensor's name is its seed."""
    found = {}
    for tensor in names.table(config):
        if tensor.limba.startswith("decoder/"):
            read = functools.partial(_read, tensor.limba, tensor.shape, config.head_dim, dtype)
            found[tensor.limba] = SavedTensor(tensor.shape, dtype, read)
    return found


def _read(name: str, shape: names.Shape, head_dim: int, dtype: np.dtype, index: Index) -> np.ndarray:
    if name.endswith("/scale"):
        return np.ones(shape, dtype)[index]
    variance = 2 / sum(shape) if name.endswith("/rel_embedding") else 1 / shape[0]
    if "/query/" in name:
        variance /= head_dim
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return (rng.standard_normal(shape, np.float32) * np.float32(variance**0.5)).astype(dtype)[index]
