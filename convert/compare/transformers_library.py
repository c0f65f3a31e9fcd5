"""Hugging Face's transformers, where it is installed; conversion does without."""

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.files import untrusted_files, untrusted_json

# Version 4 would also import TensorFlow, which it does not need here.
os.environ.setdefault("USE_TF", "0")
# For whatever loads a folder. Without it transformers asks on the terminal whether to run the folder's own code.
NO_CODE: Mapping[str, bool] = {"trust_remote_code": False}


def version() -> str | None:
    """Of the installed transformers, `4.57.6`; None where there is none. Imports nothing."""
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return None


def has_model(model_type: str) -> bool:
    """Whether the installed transformers has classes of this type of model. Imports nothing."""
    found = importlib.util.find_spec("transformers")
    places = (found.submodule_search_locations or ()) if found else ()
    return any(Path(place, "models", model_type.replace("-", "_")).is_dir() for place in places)


def load() -> Any:
    """Imports transformers."""
    return importlib.import_module("transformers")


def check_named_files(folder: Path) -> None:
    """Checks the files that a folder's tokenizer_config.json names, which transformers takes for the folder's own.

    Raises:
      ValueError: for a FIFO or a device, which would never end. A name of nothing stays for transformers.
    """
    file = folder / "tokenizer_config.json"
    settings = untrusted_json.read_object(file) if file.is_file() else {}
    for key, name in settings.items():
        if key.endswith("_file") and isinstance(name, str) and Path(name).exists():
            try:
                untrusted_files.refuse_endless(Path(name), Path(name).stat().st_mode)
            except ValueError as error:
                raise ValueError(f"{file}: {key}: {error}") from None
