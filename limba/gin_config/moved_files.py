"""A vocabulary that a gin file names by its path of before, and that lies beside that file: the folder was moved."""

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

import gin

from limba.files import storage

logger = logging.getLogger(__name__)

_NAME = "VOCABULARY_FILE"
_BINDING = re.compile(rf"^{_NAME}\s*=\s*(['\"])(.+)\1", re.MULTILINE)


def find_vocabulary(texts: Mapping[str, str]) -> None:
    """Binds VOCABULARY_FILE to the file beside the gin file that binds it, where the one that it names is not there.

    Args:
      texts: of the gin files that were read, by name.
    """
    try:
        named = gin.query_parameter(f"%{_NAME}")
    except ValueError:
        return
    if not isinstance(named, str) or storage.is_remote(named) or os.path.lexists(Path(named).expanduser()):
        return
    for file, text in reversed(list(texts.items())):
        beside = Path(file).parent / Path(named).name
        if named in (found[2] for found in _BINDING.finditer(text)) and beside.is_file():
            gin.parse_config(f"{_NAME} = {str(beside)!r}")
            logger.info("%s names %s, which is not there; the vocabulary beside it, %s, is taken.", file, named, beside)
            return
