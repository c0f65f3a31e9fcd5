"""The tensors of a checkpoint on disk, by name, whoever wrote it: Limba, T5X with Orbax, or T5X's classic format.

Opening reads an index. Tensors are read when they are asked for, and only the part that is asked for: a host reads the
shards of its own devices.
"""

import ast
import concurrent.futures
import dataclasses
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from limba import classic_checkpoints, storage
from limba.storage import AnyPath

logger = logging.getLogger(__name__)

Index = tuple[slice, ...]

# Tensors that are read at the same time; each may have several chunks.
_READERS = 8
_NO_TENSOR = ("None", "Dict", "List", "Tuple", "NamedTuple", "Custom")


@dataclasses.dataclass(frozen=True)
class SavedTensor:
    """A tensor that is not read yet. `np.asarray(tensor)` reads it whole.

    Attributes:
      shape: of the whole tensor.
      dtype: as saved.
      read: returns the part that a tuple of slices, one a dim, selects.
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
    """An array in memory, or a tensor that is one already, as a saved tensor."""
    if isinstance(array, SavedTensor):
        return array
    array = np.asarray(array)
    return SavedTensor(array.shape, array.dtype, lambda index: np.asarray(array[index]))


def open_tensors(path: AnyPath) -> dict[str, SavedTensor]:
    """The tensors of one checkpoint by their names, `target/encoder/encoder_norm/scale`.

    Raises:
      ValueError: if the index is damaged or of a format that is not known.
      FileNotFoundError: if there is none.
    """
    if classic_checkpoints.is_classic(path):
        leaves = classic_checkpoints.read_index(path)
        specs = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, dict)}
        inline = {name: from_array(leaf) for name, leaf in leaves.items() if not isinstance(leaf, dict)}
        return inline | _open_all(specs)
    return _open_all(_orbax_specs(path / "state"))


def _orbax_specs(directory: AnyPath) -> dict[str, dict[str, Any]]:
    """TensorStore's description of every tensor in Orbax's directory of a state."""
    try:
        metadata = json.loads(storage.read_bytes(directory / "_METADATA"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{directory}/_METADATA is damaged") from error
    if not isinstance(metadata, dict) or "tree_metadata" not in metadata:
        raise ValueError(f"{directory}/_METADATA is damaged: it lists no tensors")
    base = storage.kvstore_spec(directory)
    driver = "zarr3" if metadata.get("use_zarr3") else "zarr"
    packed = metadata.get("use_ocdbt", True)
    if packed and not ts.KvStore.open({"driver": "ocdbt", "base": base}).result().list().result():
        raise ValueError(f"{directory} holds no tensors")
    specs = {}
    for key, entry in metadata["tree_metadata"].items():
        if entry["value_metadata"]["value_type"] in _NO_TENSOR:
            continue
        parts = ast.literal_eval(key)
        folder = ".".join(parts) + "/"
        if packed:
            kvstore = {"driver": "ocdbt", "base": base, "path": folder}
        else:
            kvstore = {**base, "path": base["path"] + folder}
        specs["/".join(parts)] = {"driver": driver, "kvstore": kvstore}
    return specs


def _open_all(specs: Mapping[str, dict[str, Any]]) -> dict[str, SavedTensor]:
    context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
    # A chunk that is missing is damage, not zeros.
    opened = {
        name: ts.open({**spec, "fill_missing_data_reads": False}, open=True, read=True, context=context)
        for name, spec in specs.items()
    }
    return {name: _from_tensorstore(future.result()) for name, future in opened.items()}


def _from_tensorstore(store: ts.TensorStore) -> SavedTensor:
    return SavedTensor(tuple(store.shape), store.dtype.numpy_dtype, lambda index: store[index].read().result())


def read_tensors(
    tensors: Mapping[str, SavedTensor], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array | np.ndarray]:
    """Reads tensors into the shapes, dtypes and shardings that are wanted; without a sharding, as NumPy arrays."""

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
