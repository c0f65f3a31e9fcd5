"""Arrays that lie in files in C order, read in the parts that are asked for.

Files are never mapped: pages of a mapping count as memory of the process, so a model would be in memory as a whole.
"""

import dataclasses
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.files import untrusted_files
from limba.files.untrusted_files import cut, shown_list

# Rows of which only a part is wanted are read whole, this many bytes of them at a time.
GROUP_BYTES = 64 * 2**20

# Of NumPy's arrays.
_MOST_DIMS = 64
# A pattern that no name matches.
NONE = "$^"


@dataclasses.dataclass(frozen=True)
class Extent:
    """Consecutive bytes of a file."""

    offset: int
    num_bytes: int


def file_size(path: Path) -> int:
    """The size of a file of weights in bytes; see `untrusted_files.check_is_file`."""
    return untrusted_files.check_is_file(path)


def merged(files: Sequence[Path], open_file: Callable[[Path], Mapping[str, SavedTensor]]) -> dict[str, SavedTensor]:
    """The tensors of one model, which may be in several files, by their names.

    Raises:
      ValueError: if two files have the same tensor; and what opening a file raises.
    """
    tensors: dict[str, SavedTensor] = {}
    for path in files:
        opened = open_file(path)
        if twice := sorted(tensors.keys() & opened.keys()):
            raise ValueError(f"{path} has a tensor that another of the model's files has too: {cut(twice[0])}")
        tensors |= opened
    return tensors


def num_elements(path: Path, name: str, shape: Sequence[int]) -> int:
    """How many elements a tensor of this shape has.

    Raises:
      ValueError: if the shape is of no tensor that a memory can hold; the product of a million sizes takes hours.
    """
    if len(shape) > _MOST_DIMS or any(size >= 2**63 for size in shape) or (count := math.prod(shape)) >= 2**63:
        raise ValueError(f"{path} is damaged: {cut(name)} has the impossible shape {shown_list(shape)}.")
    return count


def cut_short(path: Path, expected: int, found: int) -> ValueError:
    return ValueError(f"{path} is cut short: {expected:,} bytes expected, {found:,} found; copy or download it again.")


def saved_tensor(path: Path, extents: Sequence[Extent], shape: tuple[int, ...], dtype: np.dtype) -> SavedTensor:
    """A tensor whose elements lie in `extents`, one after the other, in C order.

    Reading raises ValueError if the file has become too short. Memory is for the part that is read and `GROUP_BYTES`.
    """

    def read(index: Index) -> np.ndarray:
        wanted = tuple(range(size)[part] for part, size in zip(index, shape, strict=True))
        assert all(dim.step > 0 for dim in wanted), index
        out = np.empty([len(dim) for dim in wanted], dtype)
        if out.size:
            with path.open("rb", buffering=0) as file:
                _read(_Reader(path, file, extents), 0, shape, wanted, out)
        return out

    return SavedTensor(shape, dtype, read)


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Reads elements by their number in the array."""

    path: Path
    file: io.RawIOBase
    extents: Sequence[Extent]

    def fill(self, first: int, out: np.ndarray) -> None:
        """Fills a C-contiguous array with the elements from number `first` on."""
        begin = first * out.itemsize
        view = out.reshape(-1).view(np.uint8).data  # bfloat16 has no buffer format of its own.
        for extent in self.extents:
            if begin < extent.num_bytes and view:
                length = min(len(view), extent.num_bytes - begin)
                self._fill_bytes(extent.offset + begin, view[:length])
                view, begin = view[length:], 0
            else:
                begin -= extent.num_bytes
        assert not view

    def _fill_bytes(self, offset: int, view: memoryview) -> None:
        self.file.seek(offset)
        while view:  # One call reads 2 GiB at most.
            length = self.file.readinto(view)
            if not length:
                raise cut_short(self.path, self.file.tell() + len(view), self.file.tell())
            view = view[length:]


def _read(reader: _Reader, first: int, shape: tuple[int, ...], wanted: tuple[range, ...], out: np.ndarray) -> None:
    """Fills `out` with the wanted part of the array of this shape that begins at element number `first`."""
    if not shape:
        reader.fill(first, out)
        return
    rows, row = wanted[0], math.prod(shape[1:])
    whole_rows = wanted[1:] == tuple(map(range, shape[1:]))
    if whole_rows and rows.step == 1:
        reader.fill(first + rows.start * row, out)
    elif row * out.itemsize > GROUP_BYTES:
        for position, number in enumerate(rows):
            _read(reader, first + number * row, shape[1:], wanted[1:], out[position, ...])
    else:
        columns = tuple(slice(dim.start, dim.stop, dim.step) for dim in wanted[1:])
        count = max(1, GROUP_BYTES // (row * out.itemsize * rows.step))
        buffer = np.empty((min(count * rows.step, rows[-1] + 1 - rows[0]), *shape[1:]), out.dtype)
        for position in range(0, len(rows), count):
            group = rows[position : position + count]
            read = buffer[: group[-1] + 1 - group[0]]
            reader.fill(first + group[0] * row, read)
            out[position : position + count] = read[(slice(None, None, rows.step), *columns)]
