"""The tensors of a checkpoint on disk, by name: of Limba, of T5X with Orbax, or in T5X's classic format.

Opening a checkpoint reads only its index. Tensors are read on request, and only the requested part: a host reads the
shards of its own devices.
"""

import concurrent.futures
import contextlib
import dataclasses
import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from limba.checkpoint_files import classic_format
from limba.files import storage, untrusted_files, untrusted_json
from limba.files.storage import AnyPath
from limba.files.untrusted_files import cut, shown_list

logger = logging.getLogger(__name__)

Index = tuple[slice, ...]

# This many tensors are read at the same time; each may have several chunks.
_READERS = 8
_MOST_KEY_LENGTH = 1000
# A part of a tensor's name is part of a folder's, too.
_PART = re.compile(r"[^/\0]+")
# Not by `ast`: CPython 3.11.7's fails at random (SystemError) while another thread uses it, too.
_QUOTED = re.compile(r"'([^'\\]+)'")
_KEY = re.compile(r"\('[^'\\]+'(?:, '[^'\\]+')*,?\)")
# They say where the tensors are, and are read before them.
_METADATA = {"zarr": ".zarray", "zarr3": "zarr.json"}
_SMALL = ("manifest.ocdbt", *_METADATA.values())
# Of a chunk that is larger than its tensor.
_MOST_CHUNK_BYTES = 64 * 2**20
_NO_TENSOR = ("None", "Dict", "List", "Tuple", "NamedTuple", "Custom")


@dataclasses.dataclass(frozen=True)
class SavedTensor:
    """A tensor on disk. `np.asarray(tensor)` reads it whole.

    Attributes:
      shape: of the whole tensor.
      dtype: as saved.
      read: returns the part that a tuple of slices selects, one slice for each dim.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[Index], np.ndarray] = dataclasses.field(repr=False)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # Reading always makes a new array.
        array = self.read((slice(None),) * self.ndim)
        return array if dtype is None else array.astype(dtype)


def from_array(array: Any) -> SavedTensor:
    """An array in memory as a saved tensor; a saved tensor as it is."""
    if isinstance(array, SavedTensor):
        return array
    array = np.asarray(array)
    return SavedTensor(array.shape, array.dtype, lambda index: np.asarray(array[index]))


def open_tensors(path: AnyPath) -> dict[str, SavedTensor]:
    """The tensors of one checkpoint by their names, `target/encoder/encoder_norm/scale`.

    Raises:
      ValueError: if the index is damaged or of an unknown format, or a file is a FIFO, a device, or too large.
      FileNotFoundError: if there is no index.
    """
    # Orbax's layout has its folder in `state`; T5X's newer versions write the classic one there, too.
    folder = path if classic_format.is_classic(path) else path / "state"
    if not storage.is_remote(folder):
        _check_files(folder)
    leaves = classic_format.read_index(folder) if classic_format.is_classic(folder) else _orbax_specs(folder)
    context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
    specs = {name: spec for name, spec in leaves.items() if isinstance(spec, dict)}
    _check_metadata(specs, folder, context)
    # Without `fill_missing_data_reads`, TensorStore reads a missing chunk as zeros.
    opened = {
        name: ts.open({**spec, "fill_missing_data_reads": False}, open=True, read=True, context=context)
        for name, spec in specs.items()
    }
    inline = {name: from_array(leaf) for name, leaf in leaves.items() if name not in opened}
    stores = {name: future.result() for name, future in opened.items()}
    return inline | {name: _from_tensorstore(store, f"{folder}: {name}") for name, store in stores.items()}


def _check_files(directory: AnyPath) -> None:
    """Raises ValueError for files that TensorStore would wait for, or read whole whatever their size."""
    seen = set()
    for here, folders, names in os.walk(directory, followlinks=True):
        found = Path(here).stat()
        if (found.st_dev, found.st_ino) in seen:  # Links in a circle.
            folders.clear()
            continue
        seen.add((found.st_dev, found.st_ino))
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # A link to nothing: it is missed when it is read.
                file = Path(here, name)
                found = file.stat()
                untrusted_files.refuse_endless(file, found.st_mode)
                if name in _SMALL and found.st_size > untrusted_files.MOST_BYTES:
                    raise ValueError(
                        f"{file} is damaged: it has {found.st_size:,} bytes; a file of this name has at most "
                        f"{untrusted_files.MOST_BYTES:,}."
                    )


def _check_metadata(specs: Mapping[str, dict[str, Any]], folder: AnyPath, context: ts.Context) -> None:
    """Raises ValueError if no tensor is there, or one's metadata is no JSON or too deep: TensorStore's parser calls
    itself for every bracket, and 100,000 of them end the process. What is missing of one tensor TensorStore says.
    """
    base = storage.kvstore_spec(folder)
    is_packed = any(spec["kvstore"]["driver"] == "ocdbt" for spec in specs.values())
    store = ts.KvStore.open({"driver": "ocdbt", "base": base} if is_packed else base, context=context).result()
    before = "" if is_packed else base["path"]
    keys = {name: x["kvstore"]["path"].removeprefix(before) + _METADATA[x["driver"]] for name, x in specs.items()}
    reads = {name: store.read(key) for name, key in keys.items()}
    try:
        found = {name: read.result() for name, read in reads.items()}
    except ValueError as error:  # Not always with the file, which TensorStore leaves out.
        raise ValueError(f"{folder} is damaged: {error}. Take another checkpoint, or a copy of this one.") from error
    if found and all(read.state == "missing" for read in found.values()):
        raise ValueError(f"{folder} holds no tensors")
    for name, read in found.items():
        if read.state == "value":
            untrusted_json.parse_object(read.value, f"{folder} is damaged: the metadata of {cut(name)}")


def _orbax_specs(directory: AnyPath) -> dict[str, dict[str, Any]]:
    """TensorStore's specs of all tensors in Orbax's directory of a state."""
    file = f"{directory}/_METADATA"
    if not storage.is_file(directory / "_METADATA"):
        raise FileNotFoundError(
            f"{directory} is no checkpoint's state: it has neither _METADATA, which Orbax writes, nor "
            f"{classic_format.INDEX}, which T5X's classic format has. Was the checkpoint copied whole?"
        )
    try:
        metadata = untrusted_json.parse_object(storage.read_bytes(directory / "_METADATA"), file)
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(metadata.get("tree_metadata"), dict):
        raise ValueError(f"{file} is damaged: it lists no tensors")
    base = storage.kvstore_spec(directory)
    driver = "zarr3" if metadata.get("use_zarr3") else "zarr"
    packed = metadata.get("use_ocdbt", True)
    specs = {}
    for key, entry in metadata["tree_metadata"].items():
        described = entry.get("value_metadata") if isinstance(entry, dict) else None
        if not isinstance(described, dict) or not isinstance(described.get("value_type"), str):
            raise ValueError(f"{file} is damaged: it does not say what {cut(key)} is")
        if described["value_type"] in _NO_TENSOR:
            continue
        if not (parts := _key_parts(key)):
            raise ValueError(f"{file} is damaged: {cut(key)} is the name of no tensor")
        folder = ".".join(parts) + "/"
        kvstore = {"driver": "ocdbt", "base": base} if packed else base
        path = folder if packed else base["path"] + folder
        specs["/".join(parts)] = {"driver": driver, "kvstore": {**kvstore, "path": path}}
    return specs


def _key_parts(key: str) -> tuple[str, ...]:
    """The parts of a tensor's name, which Orbax writes as a tuple: "('target', 'encoder')". () for anything else."""
    if len(key) > _MOST_KEY_LENGTH or not _KEY.fullmatch(key):
        return ()
    parts = tuple(_QUOTED.findall(key))
    return parts if all(map(_PART.fullmatch, parts)) else ()


def _from_tensorstore(store: ts.TensorStore, where: str) -> SavedTensor:
    """Raises ValueError for chunks that take far more memory than the tensor: each is made whole to read a part."""
    chunk = [size or 1 for size in store.chunk_layout.read_chunk.shape or ()]
    bytes_of_chunk, bytes_of_tensor = (
        math.prod(shape) * store.dtype.numpy_dtype.itemsize for shape in (chunk, store.shape)
    )
    if bytes_of_chunk > max(bytes_of_tensor, _MOST_CHUNK_BYTES):
        raise ValueError(
            f"{where} is damaged: its shape is {shown_list(store.shape)}, and one chunk of it {shown_list(chunk)}. "
            "Take another checkpoint, or a copy of this one."
        )
    return SavedTensor(tuple(store.shape), store.dtype.numpy_dtype, lambda index: store[index].read().result())


def read_tensors(
    tensors: Mapping[str, SavedTensor], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array | np.ndarray]:
    """Reads tensors with the wanted shapes, dtypes and shardings; as NumPy arrays if there is no sharding."""

    def read(name: str) -> jax.Array | np.ndarray:
        tensor, want = tensors[name], wanted[name]
        sharding = getattr(want, "sharding", None)
        if sharding is None:
            return np.asarray(tensor).astype(want.dtype, copy=False)
        parts: dict[str, np.ndarray] = {}  # Replicas are read once.

        def part(index: Index | None) -> np.ndarray:
            assert index is not None
            key = str(index)
            if key not in parts:
                parts[key] = tensor.read(index).astype(want.dtype, copy=False)
            return parts[key]

        return jax.make_array_from_callback(want.shape, sharding, part)

    with concurrent.futures.ThreadPoolExecutor(_READERS) as readers:
        return dict(zip(wanted, readers.map(read, wanted), strict=True))
