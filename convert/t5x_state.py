"""A train state written tensor by tensor in one of T5X's formats: memory for the largest tensor is enough.

Orbax's own writer wants the whole state at once, so its directory (TensorStore's OCDBT, zarr arrays in it and one JSON
file that lists them) is laid out here; Orbax and T5X read it.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts
from flax import serialization

from limba import classic_checkpoints, storage
from limba.saved_tensors import SavedTensor
from limba.state_utils import unflatten_state_dict

FORMATS = ("orbax", "classic")
_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"

_UNSYNCED = storage.unsynced()
_COMMIT_BYTES = 256 * 2**20

# Told the bytes that were written.
Progress = Callable[[int], Any]


def write(path: Path, format_: str, tensors: Mapping[str, SavedTensor], dtype: str, progress: Progress) -> None:
    """Writes a checkpoint into an empty folder.

    Args:
      path: the folder.
      format_: one of `FORMATS`.
      tensors: by name, `target/…` and `state/…`.
      dtype: of the parameters.
      progress: is called after each tensor.
    """
    if format_ == "classic":
        _write_classic(path, tensors, dtype, progress)
    else:
        _write_orbax(path / "state", tensors, dtype, progress)
        metadata = {"item_handlers": {"state": _HANDLER}, "metrics": {}, "performance_metrics": {}}
        (path / "_CHECKPOINT_METADATA").write_text(json.dumps(metadata), "utf-8")
    os.sync()


def _read(name: str, tensor: SavedTensor, dtype: str) -> np.ndarray:
    """The whole tensor as it is saved.

    Raises:
      ValueError: if it is not finite.
    """
    array = np.asarray(tensor)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"The checkpoint's {name} holds NaN or infinite values; convert an earlier checkpoint.")
    return array.astype(dtype, copy=False) if name.startswith("target/") else array


def _write_classic(path: Path, tensors: Mapping[str, SavedTensor], dtype: str, progress: Progress) -> None:
    parameters = {name.removeprefix("target/"): t.shape for name, t in tensors.items() if name.startswith("target/")}
    base = storage.kvstore_spec(path)
    index: dict[str, Any] = {}
    for name, tensor in tensors.items():
        array = _read(name, tensor, dtype)
        index[name] = array
        if classic_checkpoints.has_own_folder(name, array.shape, parameters):
            spec = classic_checkpoints.tensor_spec(name, array.shape, array.shape, array.dtype.name, remote=False)
            index[name] = spec
            _write_array({**spec, "kvstore": {**base, "path": base["path"] + spec["kvstore"]["path"]}}, array)
        progress(array.nbytes)
    content = {"version": classic_checkpoints.VERSION, "optimizer": unflatten_state_dict(index)}
    (path / classic_checkpoints.INDEX).write_bytes(serialization.msgpack_serialize(content))


def _write_orbax(path: Path, tensors: Mapping[str, SavedTensor], dtype: str, progress: Progress) -> None:
    path.mkdir()
    tree = {}
    # Each commit writes a new index of everything so far, so small tensors share one.
    commit, uncommitted = ts.Transaction(), 0
    for name, tensor in tensors.items():
        array = _read(name, tensor, dtype)
        parts = tuple(name.split("/"))
        spec = {
            "driver": "zarr",
            "dtype": array.dtype.name,
            "kvstore": {"driver": "ocdbt", "base": storage.kvstore_spec(path), "path": f"{'.'.join(parts)}/"},
            "metadata": {
                "shape": list(array.shape),
                "chunks": classic_checkpoints.chunk_shape(array.shape, array.itemsize),
                "compressor": {"id": "zstd", "level": 1},
            },
            # Zeros too, so that a chunk that is missing is known to be damage.
            "store_data_equal_to_fill_value": True,
        }
        _write_array(spec, array, commit)
        uncommitted += array.nbytes
        if uncommitted > _COMMIT_BYTES:
            commit.commit_async().result()
            commit, uncommitted = ts.Transaction(), 0
        tree[str(parts)] = {
            "key_metadata": [{"key": part, "key_type": 2} for part in parts],
            "value_metadata": {
                "value_type": "jax.Array",
                "skip_deserialize": False,
                "write_shape": list(array.shape),
            },
        }
        progress(array.nbytes)
    commit.commit_async().result()
    metadata = {
        "tree_metadata": tree,
        "use_ocdbt": True,
        "use_zarr3": False,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }
    (path / "_METADATA").write_text(json.dumps(metadata), "utf-8")


def _write_array(spec: dict[str, Any], array: np.ndarray, transaction: ts.Transaction | None = None) -> None:
    store = ts.open(spec, create=True, transaction=transaction, context=_UNSYNCED).result()
    store.write(array).result()
