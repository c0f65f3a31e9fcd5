"""Paths of this machine as they are kept, compared and handed to libraries."""

import contextlib
import functools
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from limba.files.untrusted_files import shown

logger = logging.getLogger(__name__)

_ROOT = 0


def local_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path without `~` and `..`.

    `..` after a link goes up from where the link leads, as it does for the shell. TensorStore refuses paths that have
    it. A path without `..` keeps its links: it is shown to the user as it was given.

    Raises:
      ValueError: for what is not a path, such as the None or 5 of a gin file.
    """
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise ValueError(f"A path is {shown(path)}; give the name of a file or folder as a text: 'runs/my_run'.")
    absolute = Path(path).expanduser().absolute()
    return absolute.resolve() if ".." in absolute.parts else absolute


def cache_folder(name: str, environ: Mapping[str, str]) -> Path | None:
    """`$XDG_CACHE_HOME/limba/NAME`, by default `~/.cache/limba/NAME`; None if there is none to trust.

    What is kept there is believed, and programs of it run: so `limba` is made for this user alone, and a folder that
    others own or may write is not used; a warning says so, as of a user without a home.
    """
    try:
        ours = Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "limba"
    except RuntimeError:
        logger.warning("Nothing is kept in a cache: this user has no home. XDG_CACHE_HOME can name a folder.")
        return None
    with contextlib.suppress(OSError):  # It is there; or whoever writes into it says why not.
        ours.parent.mkdir(parents=True, exist_ok=True)
        ours.mkdir(mode=0o700)
    for folder in (ours, ours / name):
        if why := _why_not_private(folder):
            _warn_once(folder, why)
            return None
    return ours / name


def _why_not_private(folder: Path) -> str:
    """Why others may have written what is in a folder; "" if only this user and root may, or it is not there."""
    try:
        found = folder.stat()
    except OSError:
        return ""
    if found.st_uid not in (_ROOT, os.geteuid()):
        return "it belongs to another user: remove it, or let XDG_CACHE_HOME name another folder"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write into it (its mode is {stat.S_IMODE(found.st_mode):o}): remove it, or chmod -R go-w it"
    return ""


@functools.cache
def _warn_once(folder: Path, why: str) -> None:
    logger.warning("%s is not used, because %s.", folder, why)
