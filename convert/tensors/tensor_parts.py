"""Tensors on their way from one file to another, in parts, so that memory for the largest tensor is never needed twice.

A `SavedTensor` is not read yet. It can be transposed and cast before anything is read, and `blocks` then reads it from
front to back, as a file is written.
"""

from collections.abc import Iterator

import numpy as np

from limba.checkpoint_files.saved_tensors import Index, SavedTensor

# A part is this many bytes or a quarter of the tensor: chunks that lie across the parts are decoded four times at most.
_BLOCK_BYTES = 128 * 2**20
_MAX_BLOCKS = 4
# Each run of rows is a read of the file.
_MOST_RUNS = 16


def transposed(tensor: SavedTensor) -> SavedTensor:
    """The tensor with its dims in reverse order."""

    def read(index: Index) -> np.ndarray:
        return tensor.read(index[::-1]).T

    return SavedTensor(tensor.shape[::-1], tensor.dtype, read)


def chosen(tensor: SavedTensor, rows: np.ndarray) -> SavedTensor:
    """The rows of a tensor with these numbers, in this order; -1 is a row of zeros.

    A part is read in runs of rows that follow each other; where there are many, the tensor is read whole.
    """

    def read(index: Index) -> np.ndarray:
        wanted, others = rows[index[0]], index[1:]
        starts = np.flatnonzero((np.diff(wanted, prepend=-2) != 1) | (np.append(-1, wanted[:-1]) < 0))
        if len(starts) > _MOST_RUNS:
            whole = np.asarray(tensor.read((slice(None), *others)))
            return np.concatenate([whole, np.zeros_like(whole[:1])])[wanted]
        runs = [_run(tensor, run, others) for run in np.split(wanted, starts[1:])]
        return np.concatenate(runs) if len(runs) > 1 else runs[0]

    return SavedTensor((len(rows), *tensor.shape[1:]), tensor.dtype, read)


def _run(tensor: SavedTensor, rows: np.ndarray, others: Index) -> np.ndarray:
    """Rows whose numbers follow each other, or one of zeros."""
    first = int(rows[0]) if len(rows) else 0
    found = np.asarray(tensor.read((slice(max(first, 0), max(first, 0) + len(rows)), *others)))
    return np.zeros_like(found) if first < 0 else found


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


def blocks(tensor: SavedTensor, block_bytes: int | None = None) -> Iterator[np.ndarray]:
    """The tensor's parts along its first dim, each in C order, from front to back."""
    for index in _block_indices(tensor, block_bytes):
        yield np.asarray(tensor.read(index), order="C")


def pairs(a: SavedTensor, b: SavedTensor) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same parts of two tensors of one shape."""
    for index in _block_indices(a):
        yield a.read(index), b.read(index)


def equal(a: SavedTensor, b: SavedTensor) -> bool:
    """Whether two tensors have the same shape and values."""
    return a.shape == b.shape and all(np.array_equal(x, y) for x, y in pairs(a, b))


def spans(tensor: SavedTensor, block_bytes: int | None = None) -> Iterator[slice]:
    """Which of its first dim each of the tensor's parts has, from front to back."""
    rows = tensor.shape[0]
    most = max(block_bytes or _BLOCK_BYTES, num_bytes(tensor) // _MAX_BLOCKS)
    step = max(1, most // max(1, num_bytes(tensor) // max(1, rows)))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _block_indices(tensor: SavedTensor, block_bytes: int | None = None) -> Iterator[Index]:
    if not tensor.shape or not tensor.shape[0]:
        yield (slice(None),) * tensor.ndim
        return
    for span in spans(tensor, block_bytes):
        yield (span, *(slice(None),) * (tensor.ndim - 1))
