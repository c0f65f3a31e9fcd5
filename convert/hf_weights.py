"""`model.safetensors` and `flax_model.msgpack`, written tensor by tensor.

The libraries' own writers want the whole model at once. Reading is left to the libraries, so that what is written here
is checked by somebody else's reader.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax.numpy as jnp
import msgpack
import numpy as np
import safetensors
from flax import serialization

from convert import names

SAFETENSORS = "model.safetensors"
FLAX = "flax_model.msgpack"

_SAFETENSORS_DTYPES = {"float32": "F32", "bfloat16": "BF16"}

# From a tensor's name to its array, in the file's orientation and dtype.
Load = Callable[[str], np.ndarray]


def write_safetensors(path: Path, shapes: Mapping[str, names.Shape], dtype: str, load: Load) -> None:
    """Writes a safetensors file: the length of a JSON header, the header, the tensors end to end."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + int(np.prod(shape)) * jnp.dtype(dtype).itemsize
        header[name] = {"dtype": _SAFETENSORS_DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)  # The tensors begin at a multiple of 8 bytes.
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name in shapes:
            # bfloat16 has no buffer format of its own; its bytes have.
            file.write(np.ascontiguousarray(load(name)).view(np.uint8).data)


def write_flax(path: Path, tensor_names: list[str], load: Load) -> None:
    """Writes nested maps of arrays as `flax.serialization` reads them."""
    packer = msgpack.Packer()
    with path.open("wb") as file:

        def write(tree: Mapping) -> None:
            file.write(packer.pack_map_header(len(tree)))
            for key, value in tree.items():
                file.write(packer.pack(key))
                if isinstance(value, Mapping):
                    write(value)
                else:
                    file.write(serialization.msgpack_serialize(load(value)))

        write(names.unflatten({name: name for name in tensor_names}))


class Safetensors(Mapping[str, np.ndarray]):
    """The tensors of a safetensors file, each read when asked for."""

    def __init__(self, path: Path):
        self._file = safetensors.safe_open(path, framework="numpy")

    def __getitem__(self, name: str) -> np.ndarray:
        return self._file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def __len__(self) -> int:
        return len(self._file.keys())


def read_flax(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a Flax msgpack file by their names, `shared/embedding`."""
    return names.flatten(serialization.msgpack_restore(path.read_bytes()))
