"""T5X's classic checkpoints (version 3): an index in msgpack, and a zarr folder for every large tensor.

    checkpoint_1000/checkpoint                                   {version: 3, optimizer: {target, state}}
    checkpoint_1000/target.encoder.encoder_norm.scale/.zarray    one folder for each tensor

A leaf of the index is an array, or TensorStore's spec of a folder next to it.
"""

import io
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import ml_dtypes
import numpy as np
import tensorstore as ts
from flax import serialization, traverse_util
from jax.experimental import multihost_utils

from limba.checkpoint_files import msgpack_arrays
from limba.checkpoint_files.assignment_maps import flatten_state_dict, unflatten_state_dict
from limba.checkpoint_files.msgpack_arrays import Array
from limba.files import storage
from limba.files.storage import AnyPath
from limba.files.untrusted_files import shown

INDEX = "checkpoint"
VERSION = 3
_DTYPES = {
    np.dtype(kind).name: np.dtype(kind)
    for kind in (ml_dtypes.bfloat16, "bool", *(f"{k}{n}" for k in "iu" for n in (1, 2, 4, 8)), "f2", "f4", "f8")
}
_CHUNK_BYTES = 64 * 2**20
# T5X writes this instead of the bucket's name, which its reader fills in.
_ANY_BUCKET = "t5x-dummy-bucket"


def is_classic(path: AnyPath) -> bool:
    return storage.is_file(path / INDEX)


def read_index(path: AnyPath) -> dict[str, Any]:
    """Leaves by name: a NumPy array, or TensorStore's spec of the tensor with its full path.

    Raises:
      ValueError: if the index is damaged or not T5X's.
    """
    content = storage.read_bytes(path / INDEX)
    if content.startswith(b"model_checkpoint_path"):
        raise ValueError(f"{path} is a TensorFlow (Mesh TensorFlow) checkpoint; convert it with T5X first.")
    index = msgpack_arrays.read_tree(io.BytesIO(content), len(content), str(path / INDEX), "index of a checkpoint")
    if not isinstance(index.get("optimizer"), dict):
        raise ValueError(f"{path / INDEX} is not the index of a T5X checkpoint (no 'optimizer').")
    version = index.get("version", 0)
    if type(version) is not int or version < 2:
        raise ValueError(f"{path} is a T5X checkpoint of version {shown(version)}; versions 2 and 3 are read.")
    return dict(_leaves(index["optimizer"], (), storage.kvstore_spec(path), content))


def _leaves(node: Any, parts: tuple[str, ...], base: dict[str, Any], content: bytes) -> Iterator[tuple[str, Any]]:
    name = "/".join(parts)
    if isinstance(node, dict) and not {"driver", "kvstore"} <= node.keys():
        for key, child in node.items():
            yield from _leaves(child, (*parts, key), base, content)
    elif isinstance(node, dict):
        # Older files have the path beside the kvstore. TensorStore reads chunks and compression from the folder.
        folder = node["kvstore"].get("path", node.get("path")) if isinstance(node["kvstore"], dict) else None
        if node.get("dtype") == "uint16":
            raise ValueError(f"{name} is saved as uint16, an early T5X's bfloat16; save it again with T5X.")
        if node["driver"] != "zarr" or not isinstance(folder, str) or ".." in folder.split("/") or "\0" in folder:
            raise ValueError(f"{base['path']}{INDEX} is damaged: {name} is in no zarr folder of the checkpoint.")
        folder = folder if folder.endswith("/") else f"{folder}/"
        yield name, {"driver": "zarr", "kvstore": {**base, "path": base["path"] + folder}}
    elif isinstance(node, Array):
        yield name, _array(node, f"{base['path']}{INDEX}: {name}", content)
    elif isinstance(node, bool | int | float):
        yield name, np.asarray(node)
    elif node is not None:
        raise ValueError(f"{base['path']}{INDEX} is damaged: {name} is {shown(node)} and no array.")


def _array(array: Array, where: str, content: bytes) -> np.ndarray:
    dtype = _DTYPES.get(array.dtype)
    if dtype is None:
        raise ValueError(f"{where} is damaged: it is of the dtype {shown(array.dtype)}.")
    data = b"".join(content[offset : offset + length] for offset, length in array.extents)
    if math.prod(array.shape) * dtype.itemsize != len(data):
        raise ValueError(f"{where} is damaged: {array.dtype} {list(array.shape)} has {len(data):,} bytes.")
    return np.frombuffer(data, dtype).reshape(array.shape)


# ------------------------------------------------------- writing -----------------------------------------------------


def has_own_folder(name: str, shape: tuple[int, ...], parameters: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a tensor has a zarr folder; the others are in the index.

    T5X shards parameters, and statistics with their parameter's shape; it cannot read other tensors from a folder.
    `parameters` are shapes by name, without `target/`.
    """
    if name.startswith("target/"):
        return True
    # Adafactor: state/param_states/<parameter>/v; optax: state/param_states/0/mu/<parameter>.
    rest = name.removeprefix("state/param_states/")
    owner = parameters.get(rest.rpartition("/")[0])
    parts = rest.split("/")
    for start in range(len(parts)):
        owner = parameters.get("/".join(parts[start:]), owner)
    return owner == shape and shape != (1,)


def tensor_spec(name: str, shape: tuple[int, ...], shard: tuple[int, ...], dtype: str, remote: bool) -> dict[str, Any]:
    """The index's entry of a tensor: a zarr folder beside the index, in chunks of at most one shard."""
    kvstore = {"driver": "gcs", "bucket": _ANY_BUCKET} if remote else {"driver": "file"}
    return {
        "driver": "zarr",
        "dtype": dtype,
        "kvstore": {**kvstore, "path": name.replace("/", ".") + "/"},
        "metadata": {
            "shape": list(shape),
            "chunks": chunk_shape(shard, np.dtype(dtype).itemsize),
            "compressor": {"id": "gzip", "level": 1},
        },
    }


def chunk_shape(shard: tuple[int, ...], itemsize: int) -> list[int]:
    """The shard, its largest dim halved until it is at most 64 MiB."""
    chunks = list(shard)
    while math.prod(chunks) * itemsize > _CHUNK_BYTES:
        largest = max((dim for dim in chunks if dim % 2 == 0), default=0)
        if not largest:
            break
        chunks[chunks.index(largest)] = largest // 2
    return chunks


def write(path: AnyPath, tree: Mapping[str, Any]) -> None:
    """Writes the tensors, and at last the index, which makes the checkpoint complete.

    Each process writes the first replicas of its shards; process 0 writes the rest. The directory is empty or missing;
    the tree has `target` and `state`, of `jax.Array` or NumPy arrays.
    """
    leaves = flatten_state_dict(tree, keep_empty_nodes=True)
    # Optax has states without tensors; T5X needs them in the index.
    index: dict[str, Any] = {name: leaf for name, leaf in leaves.items() if leaf is traverse_util.empty_node}
    leaves = {name: leaf for name, leaf in leaves.items() if name not in index}
    parameters = {name.removeprefix("target/"): x.shape for name, x in leaves.items() if name.startswith("target/")}
    base, remote = storage.kvstore_spec(path), storage.is_remote(path)
    first = jax.process_index() == 0
    stores = {}
    context = storage.unsynced()
    for name, leaf in leaves.items():
        if not has_own_folder(name, leaf.shape, parameters):
            index[name] = np.asarray(leaf)
            continue
        shard = leaf.sharding.shard_shape(leaf.shape) if isinstance(leaf, jax.Array) else leaf.shape
        spec = tensor_spec(name, leaf.shape, shard, leaf.dtype.name, remote)
        index[name] = spec
        stores[name] = {**spec, "kvstore": {**base, "path": base["path"] + spec["kvstore"]["path"]}}
    if first:
        for future in [ts.open(spec, create=True, delete_existing=True, context=context) for spec in stores.values()]:
            future.result()
    multihost_utils.sync_global_devices(f"classic:{path}:created")
    for name, spec in stores.items():
        store = ts.open(spec, open=True, context=context).result()
        for part, values in _own_parts(leaves[name], first):
            store[part].write(values).result()
    os.sync()
    multihost_utils.sync_global_devices(f"classic:{path}:written")
    if first:
        content = {"version": VERSION, "optimizer": unflatten_state_dict(index)}
        storage.write_bytes(path / INDEX, serialization.msgpack_serialize(content))


def _own_parts(leaf: Any, first: bool) -> list[tuple[tuple[slice, ...], np.ndarray]]:
    if isinstance(leaf, jax.Array):
        return [(shard.index, np.asarray(shard.data)) for shard in leaf.addressable_shards if shard.replica_id == 0]
    return [((slice(None),) * leaf.ndim, leaf)] if first else []
