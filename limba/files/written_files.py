"""Files of this machine that Limba writes. Of one that is written whole a reader sees the old content or the new one,
never a part.

Of a file that people name, what is there and no plain file stays what it is: the content goes through a symbolic link
to its target, and into a device, a pipe or an open descriptor (/dev/stdout, /dev/fd/63).

A folder of Limba's own (a run, a sweep, results) may come from somebody else, with links in it, and nothing is written
through these: a whole file takes the place of a link, and where a file is continued or a folder is filled, the link is
refused.
"""

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TextIO

from limba.files import untrusted_files

# As Linux follows: links may lead in a circle.
_MOST_LINKS = 40


# ------------------------------------------------- files that people name --------------------------------------------


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yields a temporary file to write, whose content `path` gets at the end; after an error `path` is as it was.

    Raises:
      IsADirectoryError: if `path` is a folder.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            yield (temporary := Path(folder, path.name))
            move(temporary, path)
        return
    target = path.resolve()
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text as `writing` does."""
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def move(file: Path, path: Path) -> None:
    """Gives a complete file its name, or its content to what is there and no plain file; `file` is gone then."""
    if not is_stream(path):
        shutil.move(file, path.resolve())
        return
    sys.stdout.flush()  # What was printed before comes before.
    number = _descriptor(path)
    with file.open("rb") as source, open(path if number is None else os.dup(number), "wb") as stream:  # noqa: PTH123
        shutil.copyfileobj(source, stream)
    file.unlink()


def refuse_existing(path: Path, flag: str, overwrite: bool) -> None:
    """Raises FileExistsError for a file that is there, without `overwrite`; `flag` names it for the message."""
    if path.exists() and not overwrite and not is_stream(path):
        raise FileExistsError(f"{flag} {path} exists. Choose another name, or give --overwrite to replace it.")


def named_by_flag(name: str) -> str:
    """The file of a flag such as --output_file; - is standard output."""
    return "/dev/stdout" if name == "-" else name


def is_stream(path: Path) -> bool:
    """Whether the path is of a device, a pipe or an open descriptor: it has no content to replace."""
    if _descriptor(path) is not None:
        return True
    return path.exists() and not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode)


def messages_beside(path: Path) -> TextIO:
    """Where a command says what it has written: standard output may be the stream that it writes."""
    return sys.stderr if is_stream(path) else sys.stdout


def _descriptor(path: Path) -> int | None:
    """The number in /dev/fd/N and what links to it. A redirected file is then written where its writers are: opened
    again it would be cut off."""
    for _ in range(_MOST_LINKS):
        path = path.parent.resolve() / path.name
        if path.parent == Path("/proc", str(os.getpid()), "fd") or path.parent == Path("/dev/fd"):
            return int(path.name) if path.name.isdigit() else None
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


# --------------------------------------------- files of Limba's own folders ------------------------------------------


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary file to write, which takes the place of `path` at the end; after an error `path` is as it was.

    Raises:
      IsADirectoryError: if `path` is a folder.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # Of a killed process with this number, or a link that somebody put there.
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def append(path: Path, mode: str = "a", **options: Any) -> IO[Any]:
    """Opens a file to continue it.

    Args:
      mode, options: of `open`.

    Raises:
      ValueError: if it is a link, a FIFO or a device.
    """
    refuse_link(path)
    if path.exists():
        untrusted_files.refuse_endless(path, path.stat().st_mode)
    return path.open(mode, **options)


def make_folder(root: Path, name: str | Path) -> Path:
    """Makes the folder `name` of `root`, and those above it. `root` and what lies above may be links.

    Raises:
      ValueError: if a folder below `root` is a link.
    """
    folder = root / name
    for part in (folder, *folder.parents):
        if part == root:
            break
        refuse_link(part)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def refuse_link(path: Path) -> None:
    """Raises ValueError if the last part of a path is a link."""
    if path.is_symlink():
        raise ValueError(
            f"{path} is a link to {path.readlink()}, and what is written there would change that. Remove the link."
        )
