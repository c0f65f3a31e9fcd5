"""Parts of a start from counts that an earlier start has made: counts of texts, and bigrams that were fitted to counts.

`LIMBA_COUNTS_CACHE` names their folder, or is "off". Without it the folder is `$XDG_CACHE_HOME/limba/counts`, by
default `~/.cache/limba/counts`. A part is found by a checksum of all that it depends on, so that any run may use it.
At most `MAX_BYTES` are kept; those that were not used for longest are removed.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from limba.devices import compilation_cache
from limba.files import json_text, local_paths
from limba.files.version import VERSION
from limba.training import kept_arrays

logger = logging.getLogger(__name__)

VARIABLE = "LIMBA_COUNTS_CACHE"
MAX_BYTES = 2 << 30
# Changes with how texts are counted and bigrams are fitted, also between two releases: what was made before is then not
# found.
_VERSION = 1
_ENDING = "-part.npz"

Arrays = Mapping[str, np.ndarray]


def checksum(arrays: Arrays) -> str:
    """Of names, types, shapes and contents."""
    found = hashlib.sha256()
    for name, x in sorted(arrays.items()):
        found.update(f"{name} {x.dtype.str} {x.shape} ".encode())
        found.update(np.ascontiguousarray(x).data)
    return found.hexdigest()


def read(name: str, facts: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
    """The part that was made of these facts; None if it is not there. A damaged one is removed, and a warning says so.

    Args:
      name: what it is, plural, such as "counts".
    """
    if (found := _file(name, facts)) is None:
        return None
    file, text = found
    part = kept_arrays.read(file, text, name)
    with contextlib.suppress(OSError):  # Another user's, or not there.
        if part is None:
            file.unlink()
        else:
            os.utime(file)
            logger.info("The %s are those that an earlier start has made (%s).", name, file)
    return part


def write(name: str, facts: Mapping[str, Any], part: Arrays) -> None:
    """Keeps a part, if a folder can be written; else a warning says so."""
    if (found := _file(name, facts)) is None:
        return
    file, text = found
    try:
        kept_arrays.write(file, text, part)
        compilation_cache.trim(file.parent, MAX_BYTES, _ENDING)
    except OSError as error:
        logger.warning(
            'The %s cannot be kept in %s (%s): each start makes them. %s=DIR names another folder, "off" keeps none.',
            name,
            file.parent,
            error.strerror or error,
            VARIABLE,
        )


def _file(name: str, facts: Mapping[str, Any]) -> tuple[Path, str] | None:
    named = os.environ.get(VARIABLE)
    if named == "off":
        return None
    folder = local_paths.local_path(named) if named else local_paths.cache_folder("counts", os.environ)
    if folder is None:
        return None
    text = json_text.dumps({"version": [VERSION, _VERSION], "part": name, **facts}, sort_keys=True, ensure_ascii=False)
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{_ENDING}", text
