"""The package ctranslate2: is it there, and its parts."""

import importlib
import sys
from types import ModuleType
from typing import Any

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
    if "torch" in sys.modules:
        return _module("ctranslate2.specs")
    # It imports torch if that is installed: two seconds and 0.4 GB, for tensors that are not torch's.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        return _module("ctranslate2.specs")
    finally:
        del sys.modules["torch"]


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"CTranslate2's own package writes and checks its files, and cannot be imported ({error}): {EXTRA}."
        ) from error
