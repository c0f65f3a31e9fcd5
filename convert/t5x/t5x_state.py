"""A train state written chunk by chunk in one of T5X's formats.

Orbax's own writer wants the whole state at once, so its directory (TensorStore's OCDBT, zarr arrays in it and one JSON
file that lists them) is laid out here; Orbax and T5X read it.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorstore as ts
from flax import serialization

from limba.checkpoint_files import classic_format
from limba.checkpoint_files.assignment_maps import unflatten_state_dict
from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.convert.tensors import tensor_parts
from limba.files import json_text, storage

FORMATS = ("orbax", "classic")
_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"

# Names of the tensors written so far, one a line: an interrupted conversion resumes after them.
_WRITTEN = ".written"
_UNSYNCED = storage.unsynced()
_COMMIT_BYTES = 16 * 2**20

# ModelHints the bytes that were written.
Progress = Callable[[int], Any]


def write(
    path: Path, format_: str, tensors: Mapping[str, SavedTensor], dtype: str, progress: Progress, where: str = ""
) -> None:
    """Writes a checkpoint into an empty folder, or resumes one that was interrupted.

    Args:
      path, format_: the folder, and one of `FORMATS`.
      tensors: by name, `target/…` and `state/…`.
      dtype: of the parameters.
      progress: is called after each chunk.
      where: before the name of a tensor, for messages.

    Raises:
      ValueError: if a tensor is not finite.
    """
    cast = as_saved(tensors, dtype, where)
    journal = _Journal(path / _WRITTEN)
    if format_ == "classic":
        _write_classic(path, cast, journal, progress)
    else:
        _write_orbax(path / "state", cast, journal, progress)
        metadata = {"item_handlers": {"state": _HANDLER}, "metrics": {}, "performance_metrics": {}}
        (path / "_CHECKPOINT_METADATA").write_text(json_text.dumps(metadata), "utf-8")
    journal.remove()
    os.sync()


def as_saved(tensors: Mapping[str, SavedTensor], dtype: str, where: str = "") -> dict[str, SavedTensor]:
    """The tensors, parameters in `dtype`. Reading one that is not finite raises ValueError."""
    dtypes = {name: jnp.dtype(dtype) if name.startswith("target/") else t.dtype for name, t in tensors.items()}
    return {name: tensor_parts.cast(t, dtypes[name], f"{where}{name}") for name, t in tensors.items()}


class _Journal:
    def __init__(self, file: Path):
        self._file = file
        self.written = set(file.read_text("utf-8").split("\n")) if file.is_file() else set()

    def add(self, names: list[str]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write("".join(f"{name}\n" for name in names))

    def remove(self) -> None:
        self._file.unlink(missing_ok=True)


def _write_classic(path: Path, tensors: Mapping[str, SavedTensor], journal: _Journal, progress: Progress) -> None:
    parameters = {name.removeprefix("target/"): t.shape for name, t in tensors.items() if name.startswith("target/")}
    base = storage.kvstore_spec(path)
    index: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if not classic_format.has_own_folder(name, tensor.shape, parameters):
            index[name] = np.asarray(tensor)
            progress(tensor_parts.num_bytes(tensor))
            continue
        spec = classic_format.tensor_spec(name, tensor.shape, tensor.shape, tensor.dtype.name, remote=False)
        index[name] = spec
        if name in journal.written:
            progress(tensor_parts.num_bytes(tensor))
            continue
        whole = {**spec, "kvstore": {**base, "path": base["path"] + spec["kvstore"]["path"]}}
        store = ts.open(whole, open=True, create=True, context=_UNSYNCED).result()
        for chunk in _chunks(tensor.shape, spec["metadata"]["chunks"]):
            part = tensor.read(chunk)
            store[chunk].write(part).result()
            progress(part.nbytes)
        journal.add([name])
    content = {"version": classic_format.VERSION, "optimizer": unflatten_state_dict(index)}
    (path / classic_format.INDEX).write_bytes(serialization.msgpack_serialize(content))


def _write_orbax(path: Path, tensors: Mapping[str, SavedTensor], journal: _Journal, progress: Progress) -> None:
    path.mkdir(exist_ok=True)
    tree = {}
    # Each commit writes a new index of everything so far, so small tensors share one.
    transaction, uncommitted = ts.Transaction(), 0
    names: list[str] = []
    for name, tensor in tensors.items():
        parts = tuple(name.split("/"))
        tree[str(parts)] = {
            "key_metadata": [{"key": part, "key_type": 2} for part in parts],
            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False, "write_shape": list(tensor.shape)},
        }
        if name in journal.written:
            progress(tensor_parts.num_bytes(tensor))
            continue
        chunks = classic_format.chunk_shape(tensor.shape, tensor.dtype.itemsize)
        spec = {
            "driver": "zarr",
            "dtype": tensor.dtype.name,
            "kvstore": {"driver": "ocdbt", "base": storage.kvstore_spec(path), "path": f"{'.'.join(parts)}/"},
            "metadata": {"shape": list(tensor.shape), "chunks": chunks, "compressor": {"id": "zstd", "level": 1}},
            # Zeros too, so that a chunk that is missing is known to be damage.
            "store_data_equal_to_fill_value": True,
        }
        for chunk in _chunks(tensor.shape, chunks):
            store = ts.open(spec, open=True, create=True, transaction=transaction, context=_UNSYNCED).result()
            part = tensor.read(chunk)
            store[chunk].write(part).result()
            progress(part.nbytes)
            uncommitted += part.nbytes
            if uncommitted > _COMMIT_BYTES:
                transaction.commit_async().result()
                journal.add(names)
                transaction, uncommitted, names = ts.Transaction(), 0, []
        names.append(name)
    transaction.commit_async().result()
    journal.add(names)
    metadata = {
        "tree_metadata": tree,
        "use_ocdbt": True,
        "use_zarr3": False,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }
    (path / "_METADATA").write_text(json_text.dumps(metadata), "utf-8")


def _chunks(shape: tuple[int, ...], chunks: list[int]) -> Iterator[Index]:
    """What each chunk of a zarr array covers."""
    starts = (range(0, size, chunk) for size, chunk in zip(shape, chunks, strict=True))
    for corner in itertools.product(*starts):
        yield tuple(
            slice(start, min(start + chunk, size)) for start, chunk, size in zip(corner, chunks, shape, strict=True)
        )
