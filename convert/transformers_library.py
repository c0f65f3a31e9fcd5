"""Hugging Face's transformers, where it is installed; conversion does without."""

import importlib
import importlib.metadata
import importlib.util
import os
from typing import Any


def version() -> str | None:
    """Of the installed transformers, `4.57.6`; None where there is none. Imports nothing."""
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return None


def load() -> Any:
    """Imports transformers. Version 4 would import TensorFlow along, for nothing, so that is switched off meanwhile."""
    before = os.environ.get("USE_TF")
    os.environ["USE_TF"] = "0"
    try:
        return importlib.import_module("transformers")
    finally:
        if before is None:
            del os.environ["USE_TF"]
        else:
            os.environ["USE_TF"] = before
