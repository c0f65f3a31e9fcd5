"""An output folder that appears under its name only when it is complete."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from limba import storage
from limba.storage import AnyPath

_REQUEST = ".request.json"


@contextlib.contextmanager
def complete_or_absent(out: Path, request: Mapping[str, Any]) -> Iterator[Path]:
    """Yields a folder to write into, and renames it to `out` at the end.

    What stands at `out` stays until then, and is replaced. After an error nothing is left. What a killed or interrupted
    process left unfinished is in the folder again if it was after the same, so that it can go on.

    Args:
      out: the folder.
      request: all that its content depends on.

    Raises:
      ValueError: if another process is writing `out` now.
    """
    unfinished = out.with_name(f".{out.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    lock = os.open(unfinished, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"Another process is writing {out} just now.") from None
        try:
            _prepare(unfinished, json.dumps(request, sort_keys=True))
            yield unfinished
            (unfinished / _REQUEST).unlink()
            if out.exists():
                replaced = out.with_name(f".{out.name}.replaced")
                shutil.rmtree(replaced, ignore_errors=True)
                out.rename(replaced)
                unfinished.rename(out)
                shutil.rmtree(replaced)
            else:
                unfinished.rename(out)
        except Exception:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    finally:
        os.close(lock)


def fingerprint(*paths: AnyPath | None) -> str:
    """Changes with the name, size or time of a file in or at the paths: cheap, and the same while nobody touches them.

    In a bucket, with the names of the files alone.
    """
    digest = hashlib.sha256()
    for root in paths:
        if root is None:
            continue
        if storage.is_remote(root):
            digest.update("\n".join([str(root), *storage.list_files(root)]).encode())
            continue
        for file in sorted(p for p in [Path(root), *Path(root).rglob("*")] if p.is_file()):
            status = file.stat()
            digest.update(f"{file.relative_to(Path(root).parent)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _prepare(folder: Path, request: str) -> None:
    """Leaves what was begun for the same request, and nothing else."""
    file = folder / _REQUEST
    if file.is_file() and file.read_text("utf-8") == request:
        return
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    file.write_text(request, "utf-8")
