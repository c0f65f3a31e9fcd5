"""The small files of a checkpoint: `dataset/`, the positions in the data, and `run/` (`run_folder`).

Each process writes its own and lists them with their CRC-32, so that damage is noticed when they are read.
"""

import zlib
from collections.abc import Mapping

import jax

from limba.files import json_text, storage, untrusted_files, untrusted_json
from limba.files.storage import AnyPath

_CHECKSUMS = "checksums-"


def write_files(directory: AnyPath, files: Mapping[str, bytes]) -> None:
    """Writes this process's files; names must not collide between processes."""
    for name, content in files.items():
        storage.write_bytes(directory / name, content)
    checksums = {name: zlib.crc32(content) for name, content in files.items()}
    name = f"{_CHECKSUMS}{jax.process_index()}.json"
    storage.write_bytes(directory / name, json_text.dumps(checksums).encode())


def read_files(directory: AnyPath) -> dict[str, bytes]:
    """The files of all processes.

    Raises:
      ValueError: if the directory, or a file in it, is missing or damaged.
    """
    names = set(storage.list_names(directory))
    if not names:
        raise ValueError(f"{directory} is missing")
    lists = [name for name in sorted(names) if name.startswith(_CHECKSUMS)]
    if not lists:
        raise ValueError(f"{directory} lacks its list of files")
    files = {}
    for file in lists:
        checksums = untrusted_json.parse_object(storage.read_bytes(directory / file), str(directory / file))
        for name, checksum in checksums.items():
            # A name that is none of the directory's could lead out of it, where the files are copied.
            content = storage.read_bytes(directory / name) if name in names else None
            if content is None or zlib.crc32(content) != checksum:
                raise ValueError(
                    f"{directory / untrusted_files.cut(name)} is damaged or missing: take another checkpoint, or a "
                    "copy of this one"
                )
            files[name] = content
    return files


def forget_files(directory: AnyPath) -> None:
    """Removes the files of a directory; it is then one in which nothing was kept, not a damaged one."""
    lists = [name for name in storage.list_names(directory) if name.startswith(_CHECKSUMS)]
    storage.remove_tree(directory)
    for name in lists:
        storage.write_bytes(directory / name, b"{}")


def load_files(path: str | AnyPath, item: str) -> dict[str, bytes]:
    """The files of `dataset/` or `run/` of a checkpoint.

    Raises:
      ValueError: if the directory, or a file in it, is missing or damaged.
    """
    return read_files(storage.as_path(path) / item)
