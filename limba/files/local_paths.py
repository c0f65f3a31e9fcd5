"""Paths of this machine as they are kept, compared and handed to libraries."""

import os
from collections.abc import Mapping
from pathlib import Path

from limba.files.untrusted_files import shown


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
    """`$XDG_CACHE_HOME/limba/NAME`, by default `~/.cache/limba/NAME`; None for a user without a home."""
    try:
        return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "limba" / name
    except RuntimeError:
        return None
