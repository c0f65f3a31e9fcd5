"""An output folder that appears under its name only when it is complete."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def complete_or_absent(out: Path) -> Iterator[Path]:
    """Yields a folder to write into, and renames it to `out` at the end. After an error nothing is left.

    What stands at `out` stays until then, and is replaced. A folder that a killed process left unfinished is used anew.

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
            _empty(unfinished)
            yield unfinished
            if out.exists():
                replaced = out.with_name(f".{out.name}.replaced")
                shutil.rmtree(replaced, ignore_errors=True)
                out.rename(replaced)
                unfinished.rename(out)
                shutil.rmtree(replaced)
            else:
                unfinished.rename(out)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    finally:
        os.close(lock)


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
