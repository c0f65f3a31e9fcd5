"""The package gguf, which writes and reads the files: is it there?"""

import importlib
import importlib.metadata
from typing import Any

EXTRA = "pip install 'limba[gguf]'"


def version() -> str:
    """That of the package. Raises ValueError if it is missing."""
    package()
    return importlib.metadata.version("gguf")


def package() -> Any:
    """The package. Raises ValueError if it cannot be imported."""
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        raise ValueError(
            f"llama.cpp's own package gguf writes its files, and cannot be imported ({error}): {EXTRA}."
        ) from error
