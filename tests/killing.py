"""Kills a process before its n-th change of a folder, so that a test can stop a command anywhere.

A change is a file opened for writing, and a file or folder that is made, renamed or removed, as Python's audit events
tell. What a process has not flushed is lost with it, as in a real kill. Forks of `tests.forked` read KILL_BEFORE:

    KILL_BEFORE="3 /the/folder"        kills before the third change
    KILL_BEFORE="0 /the/folder"        kills never; the number of changes is in /the/folder.changes at the end
"""

import atexit
import os
import signal
import sys
from pathlib import Path

_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")


def install(request: str) -> None:
    """Counts from now on, for the life of the process: an audit hook cannot be taken away."""
    number, _, folder = request.partition(" ")
    before, changes = int(number), 0

    def is_below(path: object) -> bool:
        return isinstance(path, str | os.PathLike) and os.path.abspath(os.fspath(path)).startswith(folder)  # noqa: PTH100

    def count(event: str, arguments: tuple) -> None:
        nonlocal changes
        if event == "open":
            path, mode, flags = arguments
            writes = any(letter in (mode or "") for letter in "wax+") or bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))
            paths = [path] if writes else []
        else:
            paths = list(arguments[:2]) if event in _CHANGES else []
        if any(map(is_below, paths)):
            changes += 1
            if changes == before:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    if not before:
        atexit.register(lambda: Path(f"{folder}.changes").write_text(str(changes)))
