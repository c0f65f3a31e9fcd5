"""PyTorch's files, `pytorch_model.bin`, read without PyTorch.

A file is a pickle of a dict of tensors, and the storages of which the tensors are views. Since PyTorch 1.6 they lie in
a zip archive, not compressed; before, they followed one another. The formats are those of `torch/serialization.py`. A
pickle can run any program, so only the parts of tensors are allowed.
"""

import functools
import io
import math
import re
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from limba.addons.torch_files import tensor_pickles
from limba.addons.torch_files.tensor_pickles import ITEM_SIZES, Tensor
from limba.checkpoint_files.saved_tensors import Index, SavedTensor
from limba.convert.tensors import array_files
from limba.convert.tensors.array_files import Extent
from limba.files import untrusted_files
from limba.files.untrusted_files import cut, shown, shown_list

# By the name of a storage's class. Other kinds are passed over by their size, and refused when they are the model's.
_DTYPES = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
}
# What training scripts call the model among the things that they save together.
_MODEL_KEYS = ("state_dict", "model_state_dict", "model", "module")
# And the step of the training.
_STEP_KEYS = ("iteration", "global_step", "step")

_ZIP = b"PK\x03\x04"
_ZIP_ENTRY = struct.Struct("<4s22x2H")
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_COUNT = struct.Struct("<q")
# Where a zip archive ends: with a comment of at most 64 KiB. Python's `zipfile` takes 20 times the list in memory.
_MOST_ZIP_END, _MOST_LIST_BYTES = 2**16 + 98, 16 * 2**20
_ZIP_LIST_BYTES, _ZIP64_LIST_BYTES = struct.Struct("<12xI"), struct.Struct("<40xQ")


def open_tensors(files: Sequence[Path], buffers: str = array_files.NONE) -> dict[str, SavedTensor]:
    """The tensors of one model, which may be in several files, by their names. Tensors that share memory come each.

    Raises:
      FileNotFoundError: if a file is not there.
      ValueError: if a file is damaged, cut short, holds something else than tensors of floating point, or two files
        have the same tensor.
    """
    return array_files.merged(files, functools.partial(_open_file, buffers=re.compile(buffers)))


def training_step(path: Path) -> int | None:
    """The step that a training script saved beside the model; None where there is none.

    Raises:
      FileNotFoundError, ValueError: as `open_tensors`.
    """
    content, _ = _read(path)
    steps = [content.get(key) for key in _STEP_KEYS] if isinstance(content, dict) else []
    return next((step for step in steps if type(step) is int and step >= 0), None)


def _open_file(path: Path, buffers: re.Pattern) -> dict[str, SavedTensor]:
    content, storages = _read(path)
    parameters = {name: tensor for name, tensor in _model(path, content).items() if not buffers.search(name)}
    return {name: _saved_tensor(path, name, tensor, storages) for name, tensor in parameters.items()}


def _read(path: Path) -> tuple[Any, dict[str, Extent]]:
    """What a file's pickle holds, and where its storages are, by their keys."""
    size = array_files.file_size(path)
    with path.open("rb") as file:
        is_zip = file.read(len(_ZIP)) == _ZIP
        file.seek(0)
        return (_read_zip if is_zip else _read_legacy)(path, file, size)


def _unpickle(path: Path, file: BinaryIO, size: int) -> tuple[Any, dict[str, str]]:
    """The next pickle in a file, and the types of the storages it speaks of, by their keys.

    Raises:
      ValueError: if it is damaged, or asks for anything else than the parts of tensors.
    """
    try:
        return tensor_pickles.load(file, size)
    except tensor_pickles.NotAllowedError as error:
        raise ValueError(
            f"{path} is not a file of plain tensors: it asks for {error}, which could run any program. "
            "If you trust it, load it with torch and save the model's state_dict() alone, best as safetensors."
        ) from None
    except UnpicklingError as error:
        raise ValueError(f"{path} is damaged, cut short or not a file of PyTorch weights ({error}).") from error


# ------------------------------------------------------- formats ------------------------------------------------------


def _read_zip(path: Path, file: BinaryIO, size: int) -> tuple[Any, dict[str, Extent]]:
    """What the file's pickle holds, and where its storages are, by their keys."""
    if (list_bytes := _list_bytes(file, size)) > _MOST_LIST_BYTES:
        raise ValueError(
            f"{path} has {list_bytes:,} bytes of names of its parts; at most {_MOST_LIST_BYTES:,} are read."
        )
    file.seek(0)
    try:
        entries = {entry.filename: entry for entry in zipfile.ZipFile(file).infolist()}
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise ValueError(
            f"{path} is cut short or damaged: {size:,} bytes found, and not the list of its parts that ends the file "
            f"({error}); copy or download it again."
        ) from error

    def find(entry: zipfile.ZipInfo) -> Extent:
        file.seek(max(0, min(entry.header_offset, size)))
        head = file.read(_ZIP_ENTRY.size)
        is_whole = entry.header_offset >= 0 and len(head) == _ZIP_ENTRY.size and head.startswith(_ZIP)
        if not is_whole or entry.compress_type != zipfile.ZIP_STORED:
            part = entry.filename
            raise ValueError(f"{path} is damaged or not written by PyTorch: its part {part} is not as stored.")
        _, name_length, extra_length = _ZIP_ENTRY.unpack(head)
        extent = Extent(entry.header_offset + _ZIP_ENTRY.size + name_length + extra_length, entry.file_size)
        if extent.offset + extent.num_bytes > size:
            raise array_files.cut_short(path, extent.offset + extent.num_bytes, size)
        return extent

    def read(name: str) -> bytes:
        extent = find(entries[name])
        file.seek(extent.offset)
        return file.read(extent.num_bytes)

    pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError(f"{path} is a zip archive without one data.pkl in its only folder; PyTorch did not write it.")
    folder = pickles[0].removesuffix("data.pkl")
    if f"{folder}byteorder" in entries and read(f"{folder}byteorder") != b"little":
        raise ValueError(f"{path} was written on a big-endian machine; load and save it with torch on another one.")
    num_bytes = entries[pickles[0]].file_size
    if num_bytes > untrusted_files.MOST_BYTES:
        raise ValueError(f"{path} has {num_bytes:,} bytes beside its tensors; save the model's state_dict() alone.")
    content, _ = _unpickle(path, io.BytesIO(read(pickles[0])), num_bytes)
    data = f"{folder}data/"
    return content, {name.removeprefix(data): find(entry) for name, entry in entries.items() if name.startswith(data)}


def _list_bytes(file: BinaryIO, size: int) -> int:
    """The bytes of the list of parts that ends a zip archive, as the end says; `zipfile` reads it into memory."""
    file.seek(max(0, size - _MOST_ZIP_END))
    end = file.read()
    at = end.rfind(b"PK\x05\x06")
    found = [_ZIP_LIST_BYTES.unpack_from(end, at)[0]] if 0 <= at <= len(end) - _ZIP_LIST_BYTES.size else [0]
    at64 = end.rfind(b"PK\x06\x06")
    found += [_ZIP64_LIST_BYTES.unpack_from(end, at64)[0]] if 0 <= at64 <= len(end) - _ZIP64_LIST_BYTES.size else []
    return min(max(found), size)


def _read_legacy(path: Path, file: BinaryIO, size: int) -> tuple[Any, dict[str, Extent]]:
    """As `_read_zip`, of the format before PyTorch 1.6: five pickles, then each storage's size and elements."""
    magic, _ = _unpickle(path, file, size)
    if magic != _LEGACY_MAGIC:
        raise ValueError(f"{path} is not a file of PyTorch weights: it begins with a pickle of {shown(magic)}.")
    _unpickle(path, file, size)  # the version of the format, of which there is one
    system, _ = _unpickle(path, file, size)
    if not isinstance(system, dict) or not system.get("little_endian", True):
        raise ValueError(f"{path} was written on a big-endian machine; load and save it with torch on another one.")
    content, types = _unpickle(path, file, size)
    keys, _ = _unpickle(path, file, size)
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in types for key in keys):
        raise ValueError(f"{path} is damaged: its list of storages is {shown(keys)}.")
    storages = {}
    offset = file.tell()
    for key in keys:
        file.seek(offset)
        head = file.read(_COUNT.size)
        if len(head) < _COUNT.size:
            raise array_files.cut_short(path, offset + _COUNT.size, size)
        (count,) = _COUNT.unpack(head)
        storages[key] = Extent(offset + _COUNT.size, count * ITEM_SIZES[types[key]])
        offset += _COUNT.size + storages[key].num_bytes
        if count < 0 or offset > size:
            raise array_files.cut_short(path, offset, size)
    return content, storages


# ------------------------------------------------------- tensors ------------------------------------------------------


def _model(path: Path, content: Any, is_nested: bool = False) -> dict[str, Tensor]:
    """The model's tensors by their names, which may be one of several things in the file."""
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__} and no table of tensors.")
    others = [name for name, value in content.items() if not isinstance(value, Tensor) or not isinstance(name, str)]
    if not others:
        return content
    for key in _MODEL_KEYS:
        # A table may have itself as its part.
        if not is_nested and len(others) == len(content) and isinstance(content.get(key), dict):
            return _model(path, content[key], is_nested=True)
    raise ValueError(
        f"{path} has {shown(others[0])} of type {type(content[others[0]]).__name__} among its tensors; save the "
        "model's state_dict() alone."
    )


def _saved_tensor(path: Path, name: str, tensor: Tensor, storages: Mapping[str, Extent]) -> SavedTensor:
    storage, shape, strides = tensor.storage, tensor.shape, tensor.strides
    if storage.type_name not in _DTYPES:
        raise ValueError(f"{path}: {cut(name)} is of a {storage.type_name}; weights are one of {', '.join(_DTYPES)}.")
    dtype = _DTYPES[storage.type_name]
    if storage.key not in storages:
        raise ValueError(f"{path} is damaged: the storage of {cut(name)}, {cut(storage.key)}, is not in it.")
    elements = array_files.num_elements(path, name, shape)
    if not elements:
        return array_files.saved_tensor(path, [], shape, dtype)
    first = storage.offset + tensor.offset
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    whole = storages[storage.key]
    # An expanded tensor has its elements many times, and all of them in memory.
    most_bytes = max(whole.num_bytes, untrusted_files.MOST_BYTES)
    if (first + span) * dtype.itemsize > whole.num_bytes or elements * dtype.itemsize > most_bytes:
        raise ValueError(
            f"{path} is damaged: {cut(name)}, {shown_list(shape)} with strides {shown_list(strides)} from element "
            f"{shown(first)} on, does not fit into its storage of {whole.num_bytes:,} bytes."
        )
    extent = Extent(whole.offset + first * dtype.itemsize, span * dtype.itemsize)

    # Most tensors are stored in C order, transposed ones in C order of other dims. Dims of size 1 may have any stride.
    order = sorted(range(len(shape)), key=lambda dim: (shape[dim] > 1, -strides[dim]))
    sizes = tuple(shape[dim] for dim in order)
    if all(sizes[i] == 1 or strides[dim] == math.prod(sizes[i + 1 :]) for i, dim in enumerate(order)):
        stored = array_files.saved_tensor(path, [extent], sizes, dtype)

        def read(index: Index) -> np.ndarray:
            return stored.read(tuple(index[dim] for dim in order)).transpose(np.argsort(order))

    else:
        stretch = array_files.saved_tensor(path, [extent], (span,), dtype)
        byte_strides = tuple(stride * dtype.itemsize for stride in strides)

        def read(index: Index) -> np.ndarray:
            return np.lib.stride_tricks.as_strided(np.asarray(stretch), shape, byte_strides)[index].copy()

    return SavedTensor(shape, dtype, read)
