"""Nested maps of arrays in msgpack, as `flax.serialization` writes them: Flax's weights and T5X's classic indices.

An array is an extension of type 1, whose content is msgpack again: its shape, the name of its dtype and its bytes. An
array of more than `flax.serialization.MAX_CHUNK_SIZE` bytes is a map with its shape and flat pieces.
Only what lies between the arrays is read. msgpack's own reader makes room for a list before it reads it: five bytes
that announce fifty million values cost 400 MB, and lists in lists that much each.
"""

import dataclasses
import math
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from limba.files import untrusted_files
from limba.files.untrusted_files import cut, shown

CHUNKED = "__msgpack_chunked_array__"

_ARRAY, _COMPLEX, _SCALAR = 1, 2, 3
_MAX_DEPTH = 64
# The largest models have some thousand arrays, of about ten values each.
_MOST_VALUES = 1_000_000
# Of a whole name, `encoder/block/0/layer/…`. Many leaves may share a long beginning, and each has a copy.
_MOST_NAME_LENGTH = 1024
_MOST_DIMS = 64

# First bytes of values in msgpack, and how the number that follows (a count, a length, the value) is stored.
# https://github.com/msgpack/msgpack/blob/master/spec.md
_MAPS = {0xDE: ">H", 0xDF: ">I"}
_LISTS = {0xDC: ">H", 0xDD: ">I"}
_STRINGS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_BINARIES = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I"}
_EXTENSIONS: dict[int, str | int] = {0xC7: ">B", 0xC8: ">H", 0xC9: ">I", 0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = dict(enumerate((">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"), start=0xCA))


@dataclasses.dataclass(frozen=True)
class Array:
    """An array that is still in the file.

    Attributes:
      extents: where its bytes are, one stretch after the other: offset and length of each.
      dtype: as the file calls it.
      is_scalar: Flax wrote a single number, not an array.
    """

    extents: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]
    dtype: str
    is_scalar: bool = False

    @property
    def num_bytes(self) -> int:
        return sum(length for _, length in self.extents)


def read_tree(file: BinaryIO, size: int, where: str, what: str) -> dict[str, Any]:
    """The file's map, with `Array` for each array; those in chunks are whole.

    Args:
      size: of the file, in bytes.
      where, what: names the file, and says what it should be, for messages.

    Raises:
      ValueError: if it is damaged, cut short or too large.
    """
    return _Reader(file, size, where, what).tree()


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested maps by their names, joined by `/`."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


class _Reader:
    def __init__(self, file: BinaryIO, size: int, where: str, what: str):
        self._file = file
        self._size = size
        self._where = where
        self._what = what
        self._values = _MOST_VALUES
        self._bytes = untrusted_files.MOST_BYTES

    def tree(self) -> dict[str, Any]:
        tree = self._value("", 0)
        if not isinstance(tree, dict):
            raise ValueError(f"{self._where} is not a {self._what}: it holds {shown(tree)} and no map of arrays.")
        if (end := self._file.tell()) != self._size:
            raise ValueError(f"{self._where} is damaged: {end:,} bytes expected, {self._size:,} found.")
        return tree

    def _read(self, length: int) -> bytes:
        begin = self._file.tell()
        if begin + length > self._size:
            raise self._cut_short(begin + length)
        self._bytes -= length
        if self._bytes < 0:
            raise ValueError(f"{self._where} has more than {untrusted_files.MOST_BYTES:,} bytes beside its arrays.")
        return self._file.read(length)

    def _number(self, format_: str) -> Any:
        (number,) = struct.unpack(format_, self._read(struct.calcsize(format_)))
        return number

    def _count(self, count: int, name: str, what: str) -> int:
        """How many values follow, if so many are allowed."""
        if count > self._values:
            raise self._damaged(name, f"a {what} of {count:,} values, more than may follow")
        self._values -= count
        return count

    def _value(self, name: str, depth: int) -> Any:
        """The next value, with `Array` for each array; `name` is where it stands, for errors."""
        first = self._read(1)[0]
        if first <= 0x7F or first >= 0xE0:
            return first if first <= 0x7F else first - 0x100
        if first <= 0x8F or first in _MAPS:
            count = first & 0x0F if first <= 0x8F else self._number(_MAPS[first])
            return self._map(self._count(2 * count, name, "map"), name, depth + 1)
        if first <= 0x9F or first in _LISTS:
            count = first & 0x0F if first <= 0x9F else self._number(_LISTS[first])
            if depth > _MAX_DEPTH:
                raise self._damaged(name, "too many lists in one another")
            return [self._value(name, depth + 1) for _ in range(self._count(count, name, "list"))]
        if first <= 0xBF or first in _STRINGS:
            length = first & 0x1F if first <= 0xBF else self._number(_STRINGS[first])
            try:
                return self._read(length).decode("utf-8")
            except UnicodeDecodeError as error:
                raise self._damaged(name, "a text that is not UTF-8") from error
        if first in _CONSTANTS:
            return _CONSTANTS[first]
        if first in _NUMBERS:
            return self._number(_NUMBERS[first])
        if first in _BINARIES:
            return self._read(self._number(_BINARIES[first]))
        if first in _EXTENSIONS:
            length_of = _EXTENSIONS[first]
            return self._extension(self._number(length_of) if isinstance(length_of, str) else length_of, name)
        raise self._damaged(name, f"the byte {first:#x}")

    def _map(self, num_values: int, name: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise self._damaged(name, "too many maps in one another")
        tree: dict[str, Any] = {}
        for _ in range(num_values // 2):
            key = self._value(name, depth)
            if not isinstance(key, str) or key in tree:
                raise self._damaged(name, f"the key {shown(key)}")
            whole = f"{name}/{key}" if name else key
            if len(whole) > _MOST_NAME_LENGTH:
                raise self._damaged(cut(whole), f"a name of more than {_MOST_NAME_LENGTH:,} characters")
            tree[key] = self._value(whole, depth)
        if CHUNKED not in tree:
            return tree
        if (array := _unchunked(tree)) is None:
            raise self._damaged(name, "chunks that make no array")
        return array

    def _extension(self, length: int, name: str) -> Array:
        kind = self._number(">b")
        if kind not in (_ARRAY, _SCALAR):
            other = "a complex number" if kind == _COMPLEX else f"an extension of type {kind}"
            raise ValueError(f"{self._where}: {name} is {other}; weights are arrays.")
        end = self._file.tell() + length
        if end > self._size:
            raise self._cut_short(end)
        head = self._read(1)
        shape = self._value(name, _MAX_DEPTH)
        dtype = self._value(name, _MAX_DEPTH)
        first = self._read(1)[0]
        is_shape = (
            isinstance(shape, list)
            and len(shape) <= _MOST_DIMS
            and all(type(size) is int and size >= 0 for size in shape)
            and math.prod(shape) < 2**63
        )
        if head != b"\x93" or not is_shape or not isinstance(dtype, str) or first not in _BINARIES:
            raise self._damaged(name, "an array that does not begin with shape, dtype and bytes")
        num_bytes = self._number(_BINARIES[first])
        begin = self._file.tell()
        if begin + num_bytes != end:
            raise self._damaged(name, f"an array of {num_bytes:,} bytes where {end - begin:,} are")
        self._file.seek(end)
        return Array(((begin, num_bytes),), tuple(shape), dtype, is_scalar=kind == _SCALAR)

    def _cut_short(self, expected: int) -> ValueError:
        return ValueError(
            f"{self._where} is cut short: {expected:,} bytes expected, {self._size:,} found; copy or download it again."
        )

    def _damaged(self, name: str, what: str) -> ValueError:
        return ValueError(f"{self._where} is damaged or no {self._what}: {name or 'its begin'} has {what}.")


def _unchunked(value: dict[str, Any]) -> Array | None:
    """The array whose pieces a map holds; None if they do not make one."""
    shape, chunks = value.get("shape"), value.get("chunks")
    if not isinstance(shape, dict) or not isinstance(chunks, dict) or len(shape) > _MOST_DIMS:
        return None
    sizes = tuple(shape[key] for key in _numbers(shape) if type(shape[key]) is int and shape[key] >= 0)
    pieces = [chunks[key] for key in _numbers(chunks) if isinstance(chunks[key], Array)]
    if len(sizes) < len(shape) or len(pieces) < len(chunks) or len({piece.dtype for piece in pieces}) != 1:
        return None
    # Flax reads a piece by its own shape, which has one dimension.
    counts, num_bytes = [math.prod(piece.shape) for piece in pieces], sum(piece.num_bytes for piece in pieces)
    for piece, count in zip(pieces, counts, strict=True):
        if len(piece.shape) != 1 or piece.num_bytes * sum(counts) != count * num_bytes:
            return None
    return Array(tuple(extent for piece in pieces for extent in piece.extents), sizes, pieces[0].dtype)


def _numbers(table: dict[str, Any]) -> list[str]:
    """The keys "0", "1", ... that a list has when Flax has made a map of it."""
    return [key for key in map(str, range(len(table))) if key in table]
