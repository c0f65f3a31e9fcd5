"""Arrays in a file, with what they were made of: they are read again only where that is the same."""

import io
import logging
import tokenize
import zipfile
from collections.abc import Mapping

import numpy as np

from limba.files import storage, written_files
from limba.files.storage import AnyPath
from limba.files.untrusted_files import cut

logger = logging.getLogger(__name__)

# The entry with what the arrays were made of; no array has a name without a slash, or this one.
FACTS = "facts"
# NumPy reads an array's header with Python's own tokenizer and parser, and makes an array of what they give.
_OF_HEADERS = (SyntaxError, TypeError, OverflowError, MemoryError, tokenize.TokenError)
# An archive may also be encrypted, or of another version of the format.
_OF_ARCHIVES = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile)


def read(file: AnyPath, facts: str, name: str) -> dict[str, np.ndarray] | None:
    """The arrays that were made of the same; None where there are none, or damaged ones, which a warning says.

    Args:
      name: of the arrays, plural, for the warning.
    """
    if not storage.is_file(file):
        return None
    try:
        content = io.BytesIO(storage.read_bytes(file))
        with zipfile.ZipFile(content) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError("it is packed, and may be larger than any memory")
        with np.load(content, allow_pickle=False) as found:
            if str(found[FACTS]) != facts:
                return None
            return {x: found[x] for x in found.files if x != FACTS}
    except (*_OF_ARCHIVES, *_OF_HEADERS) as error:
        logger.warning("%s is damaged (%s): the %s are made again.", file, cut(str(error)), name)
        return None


def write(file: AnyPath, facts: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the file whole: who reads it finds the old content or the new one."""
    content = {FACTS: np.array(facts), **arrays}
    if storage.is_remote(file):
        packed = io.BytesIO()
        np.savez(packed, **content)  # type: ignore[arg-type]
        storage.write_bytes(file, packed.getvalue())
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with written_files.replacing(file) as temporary, temporary.open("wb") as opened:
        np.savez(opened, **content)  # type: ignore[arg-type]
