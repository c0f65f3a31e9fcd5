"""Checksums of a state: a bit that flips on a disk, or on the way there, is noticed when the state is read.

Orbax's files have no checksums of the numbers in them. Ours is the sum of the numbers' bits modulo 2^32, each times an
odd weight that follows from its place. An odd multiple of a power of two below 2^32 is never 0, so one flipped bit
always changes the sum. Sums do not depend on an order: each mesh gives the same.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from limba.checkpoint_files import assignment_maps, saved_average, saved_tensors, small_files
from limba.checkpoint_files.run_folder import FOLDER
from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.files import json_text, storage, untrusted_json
from limba.files.storage import AnyPath
from limba.files.untrusted_files import cut, some

FILE_NAME = "state_checksums.json"
_DTYPES = ("bool", "bfloat16", "float16", "float32", *(f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32)))
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
# Numbers that are added up at a time: some 200 MB.
_AT_A_TIME = 1 << 24


class DamagedStateError(ValueError):
    """A checkpoint's tensors are not those that were saved."""


def of_state(tree: Any) -> dict[str, list[Any]]:
    """`[dtype, shape, checksum]` of each array of a state dict, by name. Every process must call it."""
    flat = assignment_maps.flatten_state_dict(tree)
    sums = {name: checksum(leaf) for name, leaf in flat.items()}
    return {name: [jnp.dtype(x.dtype).name, list(x.shape), int(sums[name])] for name, x in flat.items()}


def of_tensors(tensors: Mapping[str, SavedTensor]) -> dict[str, list[Any]]:
    """The same of tensors that are read for it, one after another."""
    return {name: [np.dtype(x.dtype).name, list(x.shape), checksum(np.asarray(x))] for name, x in tensors.items()}


def to_file(checksums: Mapping[str, list[Any]]) -> dict[str, bytes]:
    """The file of `run/` that keeps them."""
    return {FILE_NAME: json_text.dumps(checksums, indent=1).encode()}


class SavedChecksums:
    """The checksums that were saved with a checkpoint; none for one of T5X or of an earlier Limba, or for no path.

    Raises:
      ValueError: if their file is damaged.
    """

    def __init__(self, path: AnyPath | None):
        self._path = path
        self._saved: Mapping[str, Any] = {}
        if path is not None and storage.is_file(path / FOLDER / FILE_NAME):
            content = small_files.load_files(path, FOLDER).get(FILE_NAME)
            if content is None:
                raise DamagedStateError(f"{path}/{FOLDER} is damaged: its list of files lacks {FILE_NAME}")
            self._saved = untrusted_json.parse_object(content, f"{path}/{FOLDER}/{FILE_NAME}")
            if wrong := [name for name, entry in self._saved.items() if not _is_entry(entry)]:
                raise DamagedStateError(
                    f"{path}/{FOLDER}/{FILE_NAME} is damaged: it has no dtype, shape and checksum of {cut(wrong[0])}"
                )

    def of_average(self) -> "SavedChecksums":
        """Those of a checkpoint whose average is read under the names of the parameters."""
        other = SavedChecksums(None)
        other._path = self._path
        other._saved = saved_average.instead_of_parameters(self._saved, self._path) if self._saved else {}
        return other

    def compare_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raises DamagedStateError unless these are the tensors that were saved: an index has no checksum either."""
        expected = {name: tuple(shape) for name, (_, shape, _) in self._saved.items()}
        if self._saved and shapes != expected:
            wrong = sorted(name for name in {*shapes, *expected} if shapes.get(name) != expected.get(name))
            raise self._damaged(wrong)

    def compare(self, arrays: Mapping[str, Any]) -> None:
        """Compares arrays that were read, by name. Every process must call it.

        Arrays of another shape, or of a type that cannot hold what was saved, are not compared.

        Raises:
          DamagedStateError: naming the arrays that differ.
        """
        sums = {}
        for name, array in arrays.items():
            dtype, shape, expected = self._saved.get(name, [None, None, None])
            if shape == list(array.shape) and jnp.promote_types(dtype, array.dtype) == array.dtype:
                sums[name] = checksum(array.astype(dtype)), expected
        if wrong := [name for name, (found, expected) in sums.items() if int(found) != expected]:
            raise self._damaged(wrong)

    def _damaged(self, names: list[str]) -> DamagedStateError:
        return DamagedStateError(f"{self._path} is damaged: {some([*map(repr, names)], 3)} is not what was saved")


def open_tensors(path: AnyPath) -> dict[str, SavedTensor]:
    """The tensors of a checkpoint as `saved_tensors.open_tensors`; each is compared before a part of it is used.

    Raises:
      DamagedStateError: also by a tensor's first reading, which reads it whole, if it is not what was saved.
    """
    checksums, tensors = SavedChecksums(path), saved_tensors.open_tensors(path)
    checksums.compare_shapes({name: tensor.shape for name, tensor in tensors.items()})
    # Without a checksum there is nothing to compare, and parts are read alone.
    compared = {name: _Compared(name, tensors[name], checksums) for name in tensors.keys() & checksums._saved.keys()}
    return tensors | {name: dataclasses.replace(tensors[name], read=x.read) for name, x in compared.items()}


@dataclasses.dataclass
class _Compared:
    """A tensor that is compared when it is read for the first time."""

    name: str
    tensor: SavedTensor
    checksums: SavedChecksums
    is_done: bool = False

    def read(self, index: Index) -> np.ndarray:
        if self.is_done:
            return self.tensor.read(index)
        whole = self.tensor.read((slice(None),) * self.tensor.ndim)
        self.checksums.compare({self.name: whole})
        self.is_done = True
        part = np.asarray(whole[index])
        return part if part.size == whole.size else part.copy()  # `whole` is let go


def _is_entry(value: Any) -> bool:
    """Whether a value of the file is one of `of_state`."""
    if not isinstance(value, list) or len(value) != 3:
        return False
    dtype, shape, total = value
    sizes = shape if isinstance(shape, list) else [None]
    return dtype in _DTYPES and all(untrusted_json.COUNT[0](size) for size in sizes) and type(total) is int


def checksum(array: Any) -> Any:
    """The checksum of an array; an accelerator, or the processes that share it, compute it where its parts are."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable and _is_on_cpu(array)):
        return _on_devices(array)
    flat = np.ascontiguousarray(array).reshape(-1)
    bits = flat.view(_BITS[flat.dtype.itemsize])
    total = 0
    for start in range(0, bits.size, _AT_A_TIME):
        part = bits[start : start + _AT_A_TIME].astype(np.uint32)
        places = np.arange(start, start + part.size).astype(np.uint32)
        total += int(np.sum(part * (places * np.uint32(2) + np.uint32(1)), dtype=np.uint32))
    return total % 2**32


def _is_on_cpu(array: jax.Array) -> bool:
    return all(device.platform == "cpu" for device in array.devices())


@jax.jit
def _on_devices(array: jax.Array) -> jax.Array:
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    bits = jax.lax.bitcast_convert_type(array, _BITS[array.dtype.itemsize]).astype(jnp.uint32)
    weights, stride = jnp.uint32(1), 2
    for dim in reversed(range(array.ndim)):
        weights += jax.lax.broadcasted_iota(jnp.uint32, array.shape, dim) * np.uint32(stride % 2**32)
        stride *= array.shape[dim]
    return jnp.sum(bits * weights, dtype=jnp.uint32)
