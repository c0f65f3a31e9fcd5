"""Flax's files, `flax_model.msgpack`: nested maps of arrays in msgpack, as `flax.serialization` writes and reads them.

An array is an extension of type 1, whose content is msgpack again: its shape, the name of its dtype and its bytes. An
array of more than `flax.serialization.MAX_CHUNK_SIZE` bytes is a map with its shape and flat pieces.
Flax has the whole file in memory in order to read it; here only what lies between the arrays is read to find them.
"""

import dataclasses
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import msgpack
import numpy as np
from flax import serialization

from convert.tensors import array_files, tensor_parts, weight_shards
from limba.checkpoint_files.assignment_maps import unflatten_state_dict
from limba.checkpoint_files.saved_tensors import SavedTensor

FILE = "flax_model.msgpack"

_DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
_ARRAY = 1
_OTHER_EXTENSIONS = {2: "a complex number", 3: "a single number"}
_CHUNKED = "__msgpack_chunked_array__"
_MAX_DEPTH = 64

# First bytes of values in msgpack, and how the number that follows (a count, a length, the value) is stored.
# https://github.com/msgpack/msgpack/blob/master/spec.md
_MAPS = {0xDE: ">H", 0xDF: ">I"}
_LISTS = {0xDC: ">H", 0xDD: ">I"}
_STRINGS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_BINARIES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_EXTENSIONS: dict[int, str | int] = {0xC7: ">B", 0xC8: ">H", 0xC9: ">I", 0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = dict(enumerate((">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"), start=0xCA))

# ------------------------------------------------------ reading ------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Array:
    """An array that is still in the file."""

    extents: Sequence[array_files.Extent]
    shape: tuple[int, ...]
    dtype: str


def open_tensors(files: Sequence[Path]) -> dict[str, SavedTensor]:
    """The arrays of one model, which may be in several files, by their names: `shared/embedding`.

    Raises:
      FileNotFoundError: if a file is not there.
      ValueError: if a file is damaged, cut short or holds something else than arrays of floating point, or two files
        have the same array.
    """
    return array_files.merged(files, _open_file)


def _open_file(path: Path) -> dict[str, SavedTensor]:
    tensors: dict[str, SavedTensor] = {}
    for name, value in _leaves(_Parser(path).tree()):
        if not isinstance(value, _Array):
            raise ValueError(f"{path}: {name} is {value!r:.60} and no array; weights are arrays in nested maps.")
        if value.dtype not in _DTYPES:
            raise ValueError(f"{path}: {name} is {value.dtype}; weights are one of {', '.join(_DTYPES)}.")
        if name in tensors:
            raise ValueError(f"{path} has two arrays of the name {name}; it is damaged.")
        dtype = _DTYPES[value.dtype]
        found = sum(extent.num_bytes for extent in value.extents)
        if math.prod(value.shape) * dtype.itemsize != found:
            raise ValueError(f"{path} is damaged: {name}, {value.dtype} {list(value.shape)}, has {found:,} bytes.")
        tensors[name] = array_files.saved_tensor(path, value.extents, value.shape, dtype)
    return tensors


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and _CHUNKED in value:
            yield prefix + key, _unchunked(value)
        elif isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def _unchunked(value: dict[str, Any]) -> Any:
    """The array whose pieces a map holds, or the map itself if it does not."""
    shape, chunks = value.get("shape"), value.get("chunks")
    if not isinstance(shape, dict) or not isinstance(chunks, dict):
        return value
    sizes = tuple(shape[key] for key in _numbers(shape) if type(shape[key]) is int and shape[key] >= 0)
    pieces = [chunks[key] for key in _numbers(chunks) if isinstance(chunks[key], _Array)]
    if len(sizes) < len(shape) or len(pieces) < len(chunks) or len({piece.dtype for piece in pieces}) != 1:
        return value
    return _Array([extent for piece in pieces for extent in piece.extents], sizes, pieces[0].dtype)


def _numbers(table: dict[str, Any]) -> list[str]:
    """The keys "0", "1", ... that a list has when Flax has made a map of it."""
    return [key for key in map(str, range(len(table))) if key in table]


class _Parser:
    """Reads the structure of a file and passes over the bytes of its arrays."""

    def __init__(self, path: Path):
        self._path = path
        self._size = array_files.file_size(path)

    def tree(self) -> dict[str, Any]:
        """The file's map, with `_Array` for each array."""
        with self._path.open("rb") as file:
            tree = self._value(file, "", 0)
            if not isinstance(tree, dict):
                found = f"it holds {tree!r:.60} and no map of arrays"
                raise ValueError(f"{self._path} is no file of Flax weights: {found}.")
            if file.tell() != self._size:
                raise ValueError(f"{self._path} is damaged: {file.tell():,} bytes expected, {self._size:,} found.")
        return tree

    def _read(self, file: BinaryIO, length: int) -> bytes:
        begin = file.tell()
        if begin + length > self._size:
            raise array_files.cut_short(self._path, begin + length, self._size)
        return file.read(length)

    def _number(self, file: BinaryIO, format_: str) -> Any:
        (number,) = struct.unpack(format_, self._read(file, struct.calcsize(format_)))
        return number

    def _value(self, file: BinaryIO, name: str, depth: int) -> Any:
        """The next value, with `_Array` for each array; `name` is where it stands, for errors."""
        first = self._read(file, 1)[0]
        if first <= 0x7F or first >= 0xE0:
            return first if first <= 0x7F else first - 0x100
        if first <= 0x8F or first in _MAPS:
            count = first & 0x0F if first <= 0x8F else self._number(file, _MAPS[first])
            return self._map(file, count, name, depth + 1)
        if first <= 0x9F or first in _LISTS:
            count = first & 0x0F if first <= 0x9F else self._number(file, _LISTS[first])
            if depth > _MAX_DEPTH:
                raise self._damaged(name, "too many lists in one another")
            return [self._value(file, name, depth + 1) for _ in range(count)]
        if first <= 0xBF or first in _STRINGS:
            length = first & 0x1F if first <= 0xBF else self._number(file, _STRINGS[first])
            try:
                return self._read(file, length).decode("utf-8")
            except UnicodeDecodeError as error:
                raise self._damaged(name, "a text that is not UTF-8") from error
        if first in _CONSTANTS:
            return _CONSTANTS[first]
        if first in _NUMBERS:
            return self._number(file, _NUMBERS[first])
        if first in _BINARIES:
            return self._read(file, self._number(file, _BINARIES[first]))
        if first in _EXTENSIONS:
            length = _EXTENSIONS[first]
            return self._extension(file, self._number(file, length) if isinstance(length, str) else length, name)
        raise self._damaged(name, f"the byte {first:#x}")

    def _map(self, file: BinaryIO, count: int, name: str, depth: int) -> dict[str, Any]:
        if depth > _MAX_DEPTH:
            raise self._damaged(name, "too many maps in one another")
        tree: dict[str, Any] = {}
        for _ in range(count):
            key = self._value(file, name, depth)
            if not isinstance(key, str) or key in tree:
                raise self._damaged(name, f"the key {key!r:.60}")
            tree[key] = self._value(file, f"{name}/{key}" if name else key, depth)
        return tree

    def _extension(self, file: BinaryIO, length: int, name: str) -> Any:
        kind = self._number(file, ">b")
        if kind != _ARRAY:
            other = _OTHER_EXTENSIONS.get(kind, f"an extension of type {kind}")
            raise ValueError(f"{self._path}: {name} is {other}; weights are arrays.")
        end = file.tell() + length
        if end > self._size:
            raise array_files.cut_short(self._path, end, self._size)
        head = self._read(file, 1)
        shape = self._value(file, name, _MAX_DEPTH)
        dtype = self._value(file, name, _MAX_DEPTH)
        first = self._read(file, 1)[0]
        is_shape = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
        if head != b"\x93" or not is_shape or not isinstance(dtype, str) or first not in _BINARIES:
            raise self._damaged(name, "an array that does not begin with shape, dtype and bytes")
        num_bytes = self._number(file, _BINARIES[first])
        extent = array_files.Extent(file.tell(), num_bytes)
        if extent.offset + num_bytes != end:
            raise self._damaged(name, f"an array of {num_bytes:,} bytes where {end - extent.offset:,} are")
        file.seek(end)
        return _Array([extent], tuple(shape), dtype)

    def _damaged(self, name: str, what: str) -> ValueError:
        return ValueError(f"{self._path} is damaged or no file of Flax weights: {name or 'its begin'} has {what}.")


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
            before += pack.pack_map_header(3) + pack.pack(_CHUNKED) + pack.pack(True)
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
