"""T5X's classic checkpoints (version 3): an index in msgpack, and a zarr folder for every large tensor.

    checkpoint_1000/checkpoint                                   {version: 3, optimizer: {target, state}}
    checkpoint_1000/target.encoder.encoder_norm.scale/.zarray    one folder a tensor

A leaf of the index is an array, or TensorStore's description of a folder next to it.
"""

import math
import os
from collections.abc import Mapping
from typing import Any

import jax
import msgpack
import numpy as np
import tensorstore as ts
from flax import serialization, traverse_util
from jax.experimental import multihost_utils

from limba import storage
from limba.state_utils import flatten_state_dict, unflatten_state_dict
from limba.storage import AnyPath

INDEX = "checkpoint"
VERSION = 3
_CHUNK_BYTES = 64 * 2**20
# What T5X writes for the bucket, which its reader fills in.
_ANY_BUCKET = "t5x-dummy-bucket"


def is_classic(path: AnyPath) -> bool:
    return storage.is_file(path / INDEX)


def read_index(path: AnyPath) -> dict[str, Any]:
    """Leaves by name: a NumPy array, or TensorStore's description of the tensor with its full path.

    Raises:
      ValueError: if the index is damaged or not T5X's.
    """
    content = storage.read_bytes(path / INDEX)
    if content.startswith(b"model_checkpoint_path"):
        raise ValueError(f"{path} is a TensorFlow (Mesh TensorFlow) checkpoint; convert it with T5X first.")
    try:
        index = serialization.msgpack_restore(content)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"{path / INDEX} is damaged") from error
    if not isinstance(index, dict) or "optimizer" not in index:
        raise ValueError(f"{path / INDEX} is not the index of a T5X checkpoint (no 'optimizer').")
    if index.get("version", 0) < 2:
        raise ValueError(f"{path} is a T5X checkpoint of version {index.get('version', 0)}; versions 2 and 3 are read.")
    base = storage.kvstore_spec(path)
    leaves: dict[str, Any] = {}
    _collect(index["optimizer"], (), base, leaves)
    return leaves


def _collect(node: Any, parts: tuple[str, ...], base: dict[str, Any], leaves: dict[str, Any]) -> None:
    if isinstance(node, dict) and not {"driver", "kvstore"} <= node.keys():
        for key, child in node.items():
            _collect(child, (*parts, str(key)), base, leaves)
    elif isinstance(node, dict):
        # Older files have the path beside the kvstore. Chunks and compression are read from the folder itself.
        folder = node["kvstore"].get("path", node.get("path"))
        if node.get("dtype") == "uint16":
            raise ValueError(f"{'/'.join(parts)} is saved as uint16, bfloat16 of an early T5X; save it anew with T5X.")
        folder = folder if folder.endswith("/") else f"{folder}/"
        leaves["/".join(parts)] = {"driver": node["driver"], "kvstore": {**base, "path": base["path"] + folder}}
    elif node is not None:
        leaves["/".join(parts)] = np.asarray(node)


# ------------------------------------------------------- writing -----------------------------------------------------


def has_own_folder(name: str, shape: tuple[int, ...], parameters: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a tensor gets a zarr folder; the others lie in the index.

    T5X shards parameters and statistics that have a parameter's shape, and cannot read the rest from a folder.

    Args:
      name: `target/…` or `state/…`.
      shape: of the tensor.
      parameters: shapes by name, without `target/`.
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
    """What the index says of a tensor: a zarr folder beside it, in chunks of one shard at most."""
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
    """Writes the tensors and, last of all, the index, whose presence makes the checkpoint one.

    Every process writes the shards that it alone has; process 0 the rest.

    Args:
      path: an empty or absent directory.
      tree: `target` and `state`, of `jax.Array` or NumPy arrays.
    """
    leaves = flatten_state_dict(tree, keep_empty_nodes=True)
    # Optax has states without a tensor; T5X misses them in the index if they are not there.
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
        created = [ts.open(spec, create=True, delete_existing=True, context=context) for spec in stores.values()]
        for future in created:
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
