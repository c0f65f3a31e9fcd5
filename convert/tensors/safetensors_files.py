"""Files in the safetensors format: the length of a JSON header, the header, the tensors end to end.

https://github.com/huggingface/safetensors#format. The library's reader maps the file and its writer wants all tensors
at once, so both are done here.
"""

import functools
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.tensors import array_files, tensor_parts, weight_shards
from limba.files import json_text, untrusted_files, untrusted_json
from limba.files.untrusted_files import cut, shown, shown_list

FILE = "model.safetensors"

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_LENGTH = struct.Struct("<Q")


def open_tensors(files: Sequence[Path], buffers: str = array_files.NONE) -> dict[str, SavedTensor]:
    """The tensors of one model, which may be in several files, by their names.

    Args:
      buffers: a pattern of names that are passed over, whatever their dtype: they are no parameters.

    Raises:
      FileNotFoundError: if a file is not there.
      ValueError: if a file is damaged or cut short, has tensors that are not floating point or not in PyTorch's layout,
        or two files have the same tensor.
    """
    return array_files.merged(files, functools.partial(_open_file, buffers=re.compile(buffers)))


def _open_file(path: Path, buffers: re.Pattern) -> dict[str, SavedTensor]:
    size = array_files.file_size(path)
    header, begin = _read_header(path, size)
    framework = header.pop("__metadata__", {}).get("format", "pt")
    if framework in ("flax", "tf"):
        raise ValueError(
            f"{path} holds a model of {framework}, whose tensors have other names and dims than PyTorch's. Load it in "
            "transformers 4 (from_flax=True or from_tf=True) and save it."
        )
    tensors = {}
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, offsets = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if buffers.search(name) and offsets[0] == end <= offsets[1]:
            end = offsets[1]
            continue
        if dtype not in _DTYPES:
            raise ValueError(f"{path}: {cut(name)} is {cut(dtype)}; weights are one of {', '.join(_DTYPES)}.")
        num_bytes = array_files.num_elements(path, name, shape) * _DTYPES[dtype].itemsize
        if offsets != [end, end + num_bytes]:
            raise ValueError(
                f"{path}: its header is damaged: {cut(name)}, {dtype} {shown_list(shape)}, lies at "
                f"{shown_list(offsets)} and not at {[end, end + num_bytes]}."
            )
        extent = array_files.Extent(begin + end, num_bytes)
        tensors[name] = array_files.saved_tensor(path, [extent], shape, _DTYPES[dtype])
        end += num_bytes
    if size < begin + end:
        raise array_files.cut_short(path, begin + end, size)
    if size > begin + end:
        raise ValueError(f"{path} is damaged: {begin + end:,} bytes expected, {size:,} found.")
    return {name: tensors[name] for name in header if name in tensors}


def _read_header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """The header, in which every tensor has a dtype, a shape and two offsets, and where the tensors begin."""
    with path.open("rb") as file:
        start = file.read(_LENGTH.size)
        if len(start) < _LENGTH.size:
            raise array_files.cut_short(path, _LENGTH.size, size)
        (length,) = _LENGTH.unpack(start)
        if length > untrusted_files.MOST_BYTES:
            raise ValueError(f"{path} is not a safetensors file: its first 8 bytes say that its header has {length:,}.")
        begin = _LENGTH.size + length
        if begin > size:
            raise array_files.cut_short(path, begin, size)
        header = untrusted_json.parse_object(file.read(length), f"{path} is damaged or no safetensors file: its header")
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"{path}: its header is damaged: __metadata__ is {shown(metadata)}; it has texts.")
    for name, entry in header.items():
        if name != "__metadata__" and not _is_entry(entry):
            raise ValueError(
                f"{path}: its header is damaged: {cut(name)} is {shown(entry)}; it has dtype, shape and data_offsets."
            )
    return header, begin


def _is_entry(entry: Any) -> bool:
    def are_counts(values: Any) -> bool:
        return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)

    return (
        isinstance(entry, dict)
        and isinstance(entry.get("dtype"), str)
        and are_counts(entry.get("shape"))
        and are_counts(entry.get("data_offsets"))
    )


def write(
    folder: Path,
    tensors: Mapping[str, SavedTensor],
    progress: Callable[[int], Any],
    shard_bytes: int,
    name: str = FILE,
) -> None:
    """Writes `model.safetensors`, or a file of another name, or shards of it and an index; see `weight_shards.write`.

    Raises:
      OSError: if the disk is full.
      ValueError: if the format has no name for a tensor's dtype, or what reading a tensor raises.
    """
    weight_shards.write(folder, name, tensors, _layout, shard_bytes, progress)


def _layout(tensors: Mapping[str, SavedTensor]) -> list[weight_shards.Segment]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    dtype_names = {dtype: name for name, dtype in _DTYPES.items()}
    # Wider dtypes first, so that each tensor begins at a multiple of its item size: readers map the file.
    ordered = sorted(tensors, key=lambda name: -np.dtype(tensors[name].dtype).itemsize)
    end = 0
    for name in ordered:
        tensor = tensors[name]
        if tensor.dtype not in dtype_names:
            raise ValueError(f"{name} is {tensor.dtype}, which is not a dtype of weights in safetensors files.")
        start, end = end, end + tensor_parts.num_bytes(tensor)
        header[name] = {"dtype": dtype_names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = json_text.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    before = [_LENGTH.pack(len(encoded)) + encoded] + [b""] * (len(ordered) - 1)
    sizes = [tensor_parts.num_bytes(tensors[name]) for name in ordered]
    return [weight_shards.Segment(*parts) for parts in zip(before, ordered, sizes, strict=True)]
