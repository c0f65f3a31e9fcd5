"""Disks that are full."""

import errno
import shutil
from pathlib import Path

# Of a model's folder, beside the weights: vocabularies, cards, reports.
_OTHER_BYTES = 2**24
_FULL = {errno.ENOSPC: "No space left on device", errno.EDQUOT: "Disk quota exceeded"}


def is_full(error: BaseException) -> bool:
    """Whether a disk without room is the cause; libraries in C++ keep only the system's words for it."""
    return getattr(error, "errno", None) in _FULL or any(words in str(error) for words in _FULL.values())


def free_bytes(path: Path) -> int:
    """Free bytes where a folder is, or would be made."""
    return shutil.disk_usage(next(parent for parent in (path, *path.parents) if parent.exists())).free


def require(folder: Path, num_bytes: int, remedy: str = "choose another OUT") -> None:
    """Raises ValueError if fewer bytes are free where a folder will be written, beside those of its small files."""
    needed, free = num_bytes + _OTHER_BYTES, free_bytes(folder)
    if free < needed:
        raise ValueError(
            f"{folder} needs {needed / 1e9:.2f} GB, and {free / 1e9:.2f} GB are free there: make room, or {remedy}."
        )
