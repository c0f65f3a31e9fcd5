"""Disks that are full."""

import errno
import shutil
from pathlib import Path

_FULL = {errno.ENOSPC: "No space left on device", errno.EDQUOT: "Disk quota exceeded"}


def is_full(error: BaseException) -> bool:
    """Whether a disk without room is the cause; libraries in C++ keep only the system's words for it."""
    return getattr(error, "errno", None) in _FULL or any(words in str(error) for words in _FULL.values())


def free_bytes(path: Path) -> int:
    """Free bytes where a folder is, or would be made."""
    return shutil.disk_usage(next(parent for parent in (path, *path.parents) if parent.exists())).free
