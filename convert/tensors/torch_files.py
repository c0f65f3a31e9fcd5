"""PyTorch's files, `pytorch_model.bin`, read without PyTorch.

A file is a pickle of a dict of tensors, and the storages of which the tensors are views. Since PyTorch 1.6 they lie in
a zip archive, not compressed; before, they followed one another. The formats are those of `torch/serialization.py`. A
pickle can run any program, so only the parts of tensors are allowed.
"""

import io
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from convert.tensors import array_files
from convert.tensors.array_files import Extent
from limba.checkpoint_files.saved_tensors import Index, SavedTensor

# By the name of a storage's class. Other kinds are passed over by their size, and refused when they are the model's.
_DTYPES = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
}
_ITEM_SIZES = {
    **{name: dtype.itemsize for name, dtype in _DTYPES.items()},
    "LongStorage": 8,
    "IntStorage": 4,
    "ShortStorage": 2,
    "CharStorage": 1,
    "ByteStorage": 1,
    "BoolStorage": 1,
    "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
}
# What training scripts call the model among the things that they save together.
_MODEL_KEYS = ("state_dict", "model_state_dict", "model", "module")
# And the step of the training.
_STEP_KEYS = ("iteration", "global_step", "step")

FILE = "pytorch_model.bin"

_ZIP = b"PK\x03\x04"
_ZIP_ENTRY = struct.Struct("<4s22x2H")
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_COUNT = struct.Struct("<q")


def open_tensors(files: Sequence[Path]) -> dict[str, SavedTensor]:
    """The tensors of one model, which may be in several files, by their names. Tensors that share memory come each.

    Raises:
      FileNotFoundError: if a file is not there.
      ValueError: if a file is damaged, cut short, holds something else than tensors of floating point, or two files
        have the same tensor.
    """
    return array_files.merged(files, _open_file)


def training_step(path: Path) -> int | None:
    """The step that a training script saved beside the model; None where there is none.

    Raises:
      FileNotFoundError, ValueError: as `open_tensors`.
    """
    content, _ = _read(path)
    steps = [content.get(key) for key in _STEP_KEYS] if isinstance(content, dict) else []
    return next((step for step in steps if type(step) is int and step >= 0), None)


def _open_file(path: Path) -> dict[str, SavedTensor]:
    content, storages = _read(path)
    return {name: _saved_tensor(path, name, tensor, storages) for name, tensor in _model(path, content).items()}


def _read(path: Path) -> tuple[Any, dict[str, Extent]]:
    """What a file's pickle holds, and where its storages are, by their keys."""
    size = array_files.file_size(path)
    with path.open("rb") as file:
        is_zip = file.read(len(_ZIP)) == _ZIP
        file.seek(0)
        return (_read_zip if is_zip else _read_legacy)(path, file, size)


# ------------------------------------------------ what the pickle says ------------------------------------------------

# What follows is made of tuples and a dict without attributes, which a pickle cannot change once they are made.


class _Storage(NamedTuple):
    key: str
    type_name: str
    offset: int  # Of a storage that is itself part of another one.


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Table(dict):
    """In place of OrderedDict. A state_dict has the versions of its modules as its state, which are of no use here."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        del state


class _Unread:
    """In place of values that training scripts save beside the model, such as metrics. It keeps nothing of them."""

    __slots__ = ()

    def __init__(self, *args: Any):
        del args

    def __setstate__(self, state: Any) -> None:
        del state


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> _Tensor:
    del rest  # requires_grad, hooks
    counts = (offset, *shape, *strides)
    if not isinstance(storage, _Storage) or not all(type(n) is int and n >= 0 for n in counts):
        raise UnpicklingError(f"a tensor of {storage!r:.60}, {offset!r:.60}, {shape!r:.60}, {strides!r:.60}")
    if len(shape) != len(strides):
        raise UnpicklingError(f"a tensor of shape {shape!r:.60} with strides {strides!r:.60}")
    return _Tensor(storage, offset, tuple(shape), tuple(strides))


_ALLOWED = {
    ("collections", "OrderedDict"): _Table,
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *rest: tensor,
    **{("torch", name): name for name in _ITEM_SIZES},
    # NumPy's numbers, before version 2 and since, and the bytes in them.
    ("numpy", "dtype"): _Unread,
    ("_codecs", "encode"): _Unread,
    ("numpy.core.multiarray", "scalar"): _Unread,
    ("numpy._core.multiarray", "scalar"): _Unread,
}


# What unpickling raises for bytes that are no pickle, say impossible sizes, or do with values what these cannot.
_DAMAGE = (UnpicklingError, AttributeError, EOFError, LookupError, MemoryError, OverflowError, TypeError, ValueError)


class _NotAllowed(Exception):
    """The name of what a pickle asked for."""


class _Unpickler(Unpickler):
    """Makes `_Tensor` of tensors, and nothing else than plain values besides."""

    def __init__(self, file: BinaryIO):
        super().__init__(file, encoding="utf-8")
        self.storage_types: dict[str, str] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise _NotAllowed(f"{module}.{name}")
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        match pid:
            case ("storage", str(type_name), str(key), _, int(), *view) if view in ([], [None]):
                offset = 0
            case ("storage", str(type_name), str(key), _, int(), (str(), int(offset), int())) if offset >= 0:
                pass
            case _:
                raise UnpicklingError(f"a storage called {pid!r:.100}")
        if type_name not in _ITEM_SIZES or self.storage_types.setdefault(key, type_name) != type_name:
            raise UnpicklingError(f"a storage called {pid!r:.100}, {self.storage_types.get(key)} before")
        return _Storage(key, type_name, offset)


def _unpickle(path: Path, file: BinaryIO) -> tuple[Any, dict[str, str]]:
    """The next pickle in a file, and the types of the storages it speaks of, by their keys.

    Raises:
      ValueError: if it is damaged, or asks for anything else than the parts of tensors.
    """
    unpickler = _Unpickler(file)
    try:
        return unpickler.load(), unpickler.storage_types
    except _NotAllowed as error:
        raise ValueError(
            f"{path} is no file of plain tensors: it asks for {error}, which could run any program and is not allowed. "
            "If you trust it, load it with torch and save the model's state_dict() alone, best as safetensors."
        ) from None
    except _DAMAGE as error:
        raise ValueError(f"{path} is damaged, cut short or no file of PyTorch weights ({error}).") from error


# ------------------------------------------------------- formats ------------------------------------------------------


def _read_zip(path: Path, file: BinaryIO, size: int) -> tuple[Any, dict[str, Extent]]:
    """What the file's pickle holds, and where its storages are, by their keys."""
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
    content, _ = _unpickle(path, io.BytesIO(read(pickles[0])))
    data = f"{folder}data/"
    return content, {name.removeprefix(data): find(entry) for name, entry in entries.items() if name.startswith(data)}


def _read_legacy(path: Path, file: BinaryIO, size: int) -> tuple[Any, dict[str, Extent]]:
    """As `_read_zip`, of the format before PyTorch 1.6: five pickles, then each storage's size and elements."""
    magic, _ = _unpickle(path, file)
    if magic != _LEGACY_MAGIC:
        raise ValueError(f"{path} is no file of PyTorch weights: it begins with a pickle of {magic!r:.60}.")
    _unpickle(path, file)  # the version of the format, of which there is one
    system, _ = _unpickle(path, file)
    if not isinstance(system, dict) or not system.get("little_endian", True):
        raise ValueError(f"{path} was written on a big-endian machine; load and save it with torch on another one.")
    content, types = _unpickle(path, file)
    keys, _ = _unpickle(path, file)
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in types for key in keys):
        raise ValueError(f"{path} is damaged: its list of storages is {keys!r:.60}.")
    storages = {}
    offset = file.tell()
    for key in keys:
        file.seek(offset)
        head = file.read(_COUNT.size)
        if len(head) < _COUNT.size:
            raise array_files.cut_short(path, offset + _COUNT.size, size)
        (count,) = _COUNT.unpack(head)
        storages[key] = Extent(offset + _COUNT.size, count * _ITEM_SIZES[types[key]])
        offset += _COUNT.size + storages[key].num_bytes
        if count < 0 or offset > size:
            raise array_files.cut_short(path, offset, size)
    return content, storages


# ------------------------------------------------------- tensors ------------------------------------------------------


def _model(path: Path, content: Any) -> dict[str, _Tensor]:
    """The model's tensors by their names, which may be one of several things in the file."""
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__} and no table of tensors.")
    others = [name for name, value in content.items() if not isinstance(value, _Tensor) or not isinstance(name, str)]
    if not others:
        return content
    for key in _MODEL_KEYS:
        if len(others) == len(content) and isinstance(content.get(key), dict):
            return _model(path, content[key])
    raise ValueError(
        f"{path} has {others[0]!r:.60}, a {type(content[others[0]]).__name__}, among its tensors; save the model's "
        "state_dict() alone."
    )


def _saved_tensor(path: Path, name: str, tensor: _Tensor, storages: Mapping[str, Extent]) -> SavedTensor:
    storage, shape, strides = tensor.storage, tensor.shape, tensor.strides
    if storage.type_name not in _DTYPES:
        raise ValueError(f"{path}: {name} is of a {storage.type_name}; weights are one of {', '.join(_DTYPES)}.")
    dtype = _DTYPES[storage.type_name]
    if storage.key not in storages:
        raise ValueError(f"{path} is damaged: the storage of {name}, {storage.key}, is not in it.")
    if not math.prod(shape):
        return array_files.saved_tensor(path, [], shape, dtype)
    first = storage.offset + tensor.offset
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    whole = storages[storage.key]
    if (first + span) * dtype.itemsize > whole.num_bytes:
        raise ValueError(
            f"{path} is damaged: {name}, {list(shape)} with strides {list(strides)} from element {first} on, does not "
            f"fit into its storage of {whole.num_bytes:,} bytes."
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
        elements = array_files.saved_tensor(path, [extent], (span,), dtype)
        byte_strides = tuple(stride * dtype.itemsize for stride in strides)

        def read(index: Index) -> np.ndarray:
            return np.lib.stride_tricks.as_strided(np.asarray(elements), shape, byte_strides)[index].copy()

    return SavedTensor(shape, dtype, read)
