"""Flax's files, `flax_model.msgpack`: nested maps of arrays in msgpack, as `flax.serialization` writes and reads them.

`limba/checkpoint_files/msgpack_arrays.py` has the format. Flax has the whole file in memory in order to read it; here
only what lies between the arrays is read to find them.
"""

import functools
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
from flax import serialization

from limba.checkpoint_files import msgpack_arrays
from limba.checkpoint_files.assignment_maps import unflatten_state_dict
from limba.checkpoint_files.msgpack_arrays import Array
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.tensors import array_files, tensor_parts, weight_shards
from limba.files.untrusted_files import cut, shown

FILE = "flax_model.msgpack"

_DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
_ARRAY = 1

# ------------------------------------------------------ reading ------------------------------------------------------


def open_tensors(files: Sequence[Path], buffers: str = array_files.NONE) -> dict[str, SavedTensor]:
    """The arrays of one model, which may be in several files, by their names: `shared/embedding`.

    Raises:
      FileNotFoundError: if a file is not there.
      ValueError: if a file is damaged, cut short or holds something else than arrays of floating point, or two files
        have the same array.
    """
    return array_files.merged(files, functools.partial(_open_file, buffers=re.compile(buffers)))


def _open_file(path: Path, buffers: re.Pattern) -> dict[str, SavedTensor]:
    size = array_files.file_size(path)
    with path.open("rb") as file:
        tree = msgpack_arrays.read_tree(file, size, str(path), "file of Flax weights")
    tensors: dict[str, SavedTensor] = {}
    for name, value in msgpack_arrays.leaves(tree):
        if buffers.search(name):
            continue
        if functools.reduce(_of_map, name.split("/"), tree) is not value:
            raise ValueError(f"{path}: {name} is a key with a slash, where Flax finds no weights; it nests maps.")
        if not isinstance(value, Array):
            raise ValueError(f"{path}: {name} is {shown(value)} and no array; weights are arrays in nested maps.")
        if value.is_scalar:
            raise ValueError(f"{path}: {name} is a single number; weights are arrays.")
        if value.dtype not in _DTYPES:
            raise ValueError(f"{path}: {name} is {cut(value.dtype)}; weights are one of {', '.join(_DTYPES)}.")
        if name in tensors:
            raise ValueError(f"{path} has two arrays of the name {name}; it is damaged.")
        dtype = _DTYPES[value.dtype]
        if array_files.num_elements(path, name, value.shape) * dtype.itemsize != value.num_bytes:
            raise ValueError(
                f"{path} is damaged: {name}, {value.dtype} {list(value.shape)}, has {value.num_bytes:,} bytes."
            )
        extents = [array_files.Extent(*extent) for extent in value.extents]
        tensors[name] = array_files.saved_tensor(path, extents, value.shape, dtype)
    return tensors


def _of_map(tree: Any, key: str) -> Any:
    return tree.get(key) if isinstance(tree, dict) else None


# ------------------------------------------------------ writing ------------------------------------------------------


def write(folder: Path, tensors: Mapping[str, SavedTensor], progress: Callable[[int], Any], shard_bytes: int) -> None:
    """Writes `flax_model.msgpack`, or shards of it and an index; see `shards.write`.

    Raises:
      OSError: if the disk is full.
      ValueError: if a tensor's dtype is not floating point, or what reading a tensor raises.
    """
    weight_shards.write(folder, FILE, tensors, _layout, shard_bytes, progress)


def _layout(tensors: Mapping[str, SavedTensor]) -> list[weight_shards.Segment]:
    pack = msgpack.Packer()
    segments: list[weight_shards.Segment] = []
    before = b""

    def add_array(shape: Sequence[int], dtype: str, name: str, num_bytes: int) -> None:
        nonlocal before
        head = b"\x93" + pack.pack(list(shape)) + pack.pack(dtype) + _binary_head(num_bytes)
        before += _extension_head(len(head) + num_bytes) + head
        segments.append(weight_shards.Segment(before, name, num_bytes))
        before = b""

    def add(tree: Mapping[str, Any]) -> None:
        nonlocal before
        before += pack.pack_map_header(len(tree))
        for key, value in tree.items():
            before += pack.pack(key)
            if isinstance(value, Mapping):
                add(value)
                continue
            tensor = tensors[value]
            dtype = np.dtype(tensor.dtype)
            if _DTYPES.get(dtype.name) != dtype:
                raise ValueError(f"{value} is {dtype}; weights are one of {', '.join(_DTYPES)}.")
            num_bytes = tensor_parts.num_bytes(tensor)
            if num_bytes <= serialization.MAX_CHUNK_SIZE:
                add_array(tensor.shape, dtype.name, value, num_bytes)
                continue
            # Flax writes and wants the keys of all three maps in this form.
            step = max(1, serialization.MAX_CHUNK_SIZE // dtype.itemsize) * dtype.itemsize
            before += pack.pack_map_header(3) + pack.pack(msgpack_arrays.CHUNKED) + pack.pack(True)
            before += pack.pack("shape") + pack.pack({str(i): size for i, size in enumerate(tensor.shape)})
            before += pack.pack("chunks") + pack.pack_map_header(-(-num_bytes // step))
            for number, start in enumerate(range(0, num_bytes, step)):
                before += pack.pack(str(number))
                length = min(step, num_bytes - start)
                add_array([length // dtype.itemsize], dtype.name, value, length)

    add(unflatten_state_dict({name: name for name in tensors}))
    return segments


def _binary_head(length: int) -> bytes:
    if length < 2**8:
        return struct.pack(">BB", 0xC4, length)
    return struct.pack(">BH", 0xC5, length) if length < 2**16 else struct.pack(">BI", 0xC6, length)


def _extension_head(length: int) -> bytes:
    # Lengths of 1, 2, 4, 8 and 16 have heads of their own, which are shorter; readers take both.
    if length < 2**8:
        return struct.pack(">BBb", 0xC7, length, _ARRAY)
    return struct.pack(">BHb", 0xC8, length, _ARRAY) if length < 2**16 else struct.pack(">BIb", 0xC9, length, _ARRAY)
