"""What `limba convert check` asks of a folder that was written for an engine."""

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from limba.addons.engines import engine_folder
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files.model import Model

# By the format of the report: the command, which needs the packages of its engine.
_ENGINES = {"ctranslate2": "to_ct2", "onnx": "to_onnx", "gguf": "to_gguf"}


def kind(report: Mapping[str, Any]) -> str:
    """The engine that the folder is for; "" of others."""
    return str(report["format"]) if report.get("format") in _ENGINES else ""


def compare(model: Model, folder: Path, report: Mapping[str, Any]) -> Iterator[Comparison]:
    """`engine_folder.compare` by the engine of the report."""
    engine = importlib.import_module(f"limba.addons.engines.{_ENGINES[kind(report)]}").ENGINE
    yield from engine_folder.compare(engine, model, folder, report)
