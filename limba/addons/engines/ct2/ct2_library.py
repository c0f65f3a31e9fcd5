"""The package ctranslate2: is it there, and its parts."""

import importlib
from types import ModuleType
from typing import Any

from limba.devices import library_patches

LEAST = (4, 8)
EXTRA = "pip install 'limba[ct2]'"


def version() -> str:
    """That of the package.

    Raises:
      ValueError: if it is missing, does not load, or is older than what was tried.
    """
    found: str = _module("ctranslate2").__version__
    if tuple(int(part) for part in found.split(".")[:2]) < LEAST:
        least = ".".join(map(str, LEAST))
        raise ValueError(f"ctranslate2 {found} is installed, and {least} or newer is needed: {EXTRA}.")
    return found


def engine() -> Any:
    """The package, for `Translator` and `Encoder`."""
    return _module("ctranslate2")


def specs() -> Any:
    """Its module of specifications, what a model's file has."""
    # It would import torch: two seconds and 0.4 GB, for tensors that are not torch's.
    with library_patches.without_torch():
        return _module("ctranslate2.specs")


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"CTranslate2's own package writes and checks its files, and cannot be imported ({error}): {EXTRA}."
        ) from error
