"""Tensors on their way from one file to another, in parts, so that memory for the largest tensor is never needed twice.

A `SavedTensor` is not read yet. It can be turned and rounded before anything is read, and `blocks` then reads it from
front to back, as a file is written.
"""

from collections.abc import Iterator

import numpy as np

from limba.saved_tensors import Index, SavedTensor

# A part is this many bytes or a quarter of the tensor: chunks that lie across the parts are decoded four times at most.
_BLOCK_BYTES = 128 * 2**20
_MAX_BLOCKS = 4


def transposed(tensor: SavedTensor) -> SavedTensor:
    """The tensor with its dims in reverse order."""

    def read(index: Index) -> np.ndarray:
        return tensor.read(index[::-1]).T

    return SavedTensor(tensor.shape[::-1], tensor.dtype, read)


def cast(tensor: SavedTensor, dtype: np.dtype, name: str) -> SavedTensor:
    """The tensor in another dtype; reading raises ValueError with `name` where it holds NaN or infinite values."""
    dtype = np.dtype(dtype)

    def read(index: Index) -> np.ndarray:
        part = tensor.read(index).astype(dtype, copy=False)
        # ml_dtypes' bfloat16 is of kind "V" for NumPy.
        if dtype.kind in "fV" and not np.isfinite(part.astype(np.float32, copy=False)).all():
            raise ValueError(f"{name} holds NaN or infinite values; convert an earlier checkpoint.")
        return part

    return SavedTensor(tensor.shape, dtype, read)


def num_bytes(tensor: SavedTensor) -> int:
    return int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize


def spans(tensor: SavedTensor, block_bytes: int = _BLOCK_BYTES) -> Iterator[slice]:
    """Which of its first dim each of the tensor's parts has, from front to back."""
    rows = tensor.shape[0]
    most = max(block_bytes, num_bytes(tensor) // _MAX_BLOCKS)
    step = max(1, most // max(1, num_bytes(tensor) // max(1, rows)))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def blocks(tensor: SavedTensor, block_bytes: int = _BLOCK_BYTES) -> Iterator[np.ndarray]:
    """The tensor's parts along its first dim, each in C order, from front to back."""
    if not tensor.shape or not tensor.shape[0]:
        yield np.ascontiguousarray(tensor.read((slice(None),) * tensor.ndim)).reshape(tensor.shape)
        return
    rest = (slice(None),) * (tensor.ndim - 1)
    for span in spans(tensor, block_bytes):
        yield np.ascontiguousarray(tensor.read((span, *rest)))
