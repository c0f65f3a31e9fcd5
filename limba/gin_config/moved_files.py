"""A vocabulary that a gin file names by its path of before, and that lies beside that file: the folder was moved."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import gin

from limba.files import storage
from limba.gin_config.recipe import Recipe

logger = logging.getLogger(__name__)

_NAME = "VOCABULARY_FILE"


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
        if beside.is_file() and Recipe.parse(text, file).macros.get(_NAME) == named:
            gin.parse_config(f"{_NAME} = {str(beside)!r}")
            logger.info("%s names %s, which is not there; the vocabulary beside it, %s, is taken.", file, named, beside)
            return
