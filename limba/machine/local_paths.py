"""Paths of this machine as they are kept, compared and handed to libraries."""

import os
from pathlib import Path


def local_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path without `~` and `..`.

    `..` after a link goes up from where the link leads, as it does for the shell. TensorStore refuses paths that have
    it. A path without `..` keeps its links: it is shown to the user as it was given.
    """
    absolute = Path(path).expanduser().absolute()
    return absolute.resolve() if ".." in absolute.parts else absolute
