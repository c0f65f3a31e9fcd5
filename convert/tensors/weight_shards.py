"""Weights written to one file, or to several and an index that says where each tensor is, as Hugging Face names them.

A file gets its name when it is complete and on disk. Complete files are kept, so an interrupted conversion resumes with
the file at which it stopped.
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.convert.tensors import tensor_parts
from limba.files import json_text


@dataclasses.dataclass(frozen=True)
class Segment:
    """A header and the next bytes of a tensor, as they follow each other in a file.

    Attributes:
      before: the header.
      name: of the tensor. Consecutive segments may continue the same one.
      num_bytes: of the tensor in this segment.
    """

    before: bytes
    name: str
    num_bytes: int


# How a file with these tensors is laid out. Every tensor comes once.
Layout = Callable[[Mapping[str, SavedTensor]], Sequence[Segment]]


def write(
    folder: Path,
    name: str,
    tensors: Mapping[str, SavedTensor],
    layout: Layout,
    shard_bytes: int,
    progress: Callable[[int], Any],
) -> None:
    """Writes `folder/name`, or if there is more than `shard_bytes` of tensors `name-00001-of-0000N` and an index.

    Args:
      folder, name: of the single file, `model.safetensors`. The folder exists.
      tensors: by name; read one by one, in parts.
      shard_bytes: of tensors in one file. A larger tensor gets a file of its own.
      progress: is called with each number of tensors' bytes that has been written, or was there.

    Raises:
      OSError: if the disk is full.
      ValueError: what reading a tensor raises.
    """
    shards = _shards(tensors, shard_bytes)
    stem, suffix = Path(name).stem, Path(name).suffix
    files = [name]
    if len(shards) > 1:
        files = [f"{stem}-{i:05d}-of-{len(shards):05d}{suffix}" for i in range(1, len(shards) + 1)]
    for file, shard in zip(files, shards, strict=True):
        _write_file(folder / file, shard, layout(shard), progress)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(map(tensor_parts.num_bytes, tensors.values()))},
            "weight_map": {tensor: file for file, shard in zip(files, shards, strict=True) for tensor in shard},
        }
        path = folder / f"{name}.index.json"
        part = _part(path)
        part.write_text(json_text.dumps(index, indent=2, sort_keys=True) + "\n", "utf-8")
        part.rename(path)


def _shards(tensors: Mapping[str, SavedTensor], shard_bytes: int) -> list[dict[str, SavedTensor]]:
    """The tensors in their order, parted where the next one would be too much."""
    shards: list[dict[str, SavedTensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        num_bytes = tensor_parts.num_bytes(tensor)
        if shards[-1] and size + num_bytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += num_bytes
    return shards


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _write_file(
    path: Path, tensors: Mapping[str, SavedTensor], segments: Sequence[Segment], progress: Callable[[int], Any]
) -> None:
    if _is_complete(path, segments):
        progress(sum(segment.num_bytes for segment in segments))
        return
    part = _part(path)
    with part.open("wb") as file:
        for name, group in itertools.groupby(segments, lambda segment: segment.name):
            _write_tensor(file, tensors[name], list(group), progress)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)


def _write_tensor(file: Any, tensor: SavedTensor, segments: list[Segment], progress: Callable[[int], Any]) -> None:
    following = iter(segments)
    segment = next(following)
    file.write(segment.before)
    room = segment.num_bytes
    for block in tensor_parts.blocks(tensor):
        data = block.reshape(-1).view(np.uint8).data  # bfloat16 has no buffer format of its own.
        while len(data) > room:
            file.write(data[:room])
            data = data[room:]
            segment = next(following)
            file.write(segment.before)
            room = segment.num_bytes
        file.write(data)
        room -= len(data)
        progress(block.nbytes)
        del block, data  # The next block is read before the loop's variable lets go of this one.
    assert not room and next(following, None) is None, segments


def _is_complete(path: Path, segments: Sequence[Segment]) -> bool:
    """Whether a file of this layout is there. Files get their names when they are complete."""
    size = sum(len(segment.before) + segment.num_bytes for segment in segments)
    if not path.is_file() or path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        for segment in segments:
            if file.read(len(segment.before)) != segment.before:
                return False
            file.seek(segment.num_bytes, os.SEEK_CUR)
    return True
