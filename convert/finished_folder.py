"""A folder that Limba wrote for an engine or for sentence-transformers, and a model: is the folder still this model?

`conversion_report.json` says of what kind it is and lists the files and their hashes.
"""

import importlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from convert import engine_folder
from convert.compare import folder_tokens
from convert.compare.comparison import TEXT
from convert.compare.comparison_rows import Comparison
from convert.exports import sentence_folder
from convert.model_files import any_format
from convert.model_files.model import Model
from limba.files import untrusted_json
from limba.files.output_folder import REPORT, changed, read_report
from limba.files.untrusted_files import cut, is_inside, shown, some

# By the format of the report: the command, which needs the packages of its engine.
_ENGINES = {"ctranslate2": "to_ct2", "onnx": "to_onnx", "gguf": "to_gguf"}
_SENTENCES = "sentence-transformers"


def report_of(path: str) -> dict[str, Any] | None:
    """The report of such a folder; None of everything else. Raises ValueError if it is damaged."""
    folder = Path(path).expanduser()
    if "://" in path or not folder.is_dir() or not (report := read_report(folder)):
        return None
    return report if kind(report) else None


def kind(report: Mapping[str, Any]) -> str:
    """What the folder is for; "" for transformers."""
    if "pooling" in report:
        return _SENTENCES
    return str(report["format"]) if report.get("format") in _ENGINES else ""


def compare_files(label: str, folder: Path, report: Mapping[str, Any]) -> Iterator[Comparison]:
    """Rows of the files that are lost, changed, or not the conversion's.

    Raises:
      ValueError: if the report is damaged.
    """
    listed, hashed = report.get("files"), report.get("sha256")
    if not isinstance(listed, list) or not all(map(is_inside, listed)):
        raise ValueError(f"{folder / REPORT} is damaged: its files are {shown(listed)}.")
    there = set(sentence_folder.files(folder))
    yield _row(f"files missing, {label}", sorted({*listed} - there), f"of {len(listed)}")
    if hashed is None:
        note = f"not compared: {REPORT} is of an earlier version and has no hashes; convert again, with --overwrite"
        yield Comparison(f"files changed, {label}", None, 0, note)
    else:
        yield _row(f"files changed, {label}", changed(folder, report), f"of {len(hashed)}, by SHA-256")
    if others := sorted(there - {*listed}):
        yield Comparison(f"files not read, {label}", None, 0, f"not compared: {some([*map(cut, others)])}")


def _row(what: str, names: list[str], of: str) -> Comparison:
    more = f": {some([*map(cut, names)])}" if names else ""
    return Comparison(what, len(names), 0, f"{of}{more}")


def compare(model: Model, folder: Path, report: Mapping[str, Any]) -> list[Comparison]:
    """Compares the folder with a model, in its engine.

    Raises:
      ValueError: if the engine is not installed or does not have the model, or cannot load the folder.
    """
    if kind(report) != _SENTENCES:
        engine = importlib.import_module(f"convert.{_ENGINES[kind(report)]}").ENGINE
        return engine_folder.compare(engine, model, folder, report)
    pooling, length = report["pooling"], report.get("max_seq_length")
    if pooling not in sentence_folder.POOLINGS or type(length) is not int:
        raise ValueError(f"{folder / REPORT} is damaged: pooling is {shown(pooling)}, max_seq_length {shown(length)}.")
    written = sentence_folder.of_model(model, pooling, report.get("normalize") is True, length)
    opened = any_format.open_model(folder)
    rows = [*folder_tokens.compare("B", opened, TEXT), *folder_tokens.compare_all(model, opened)]
    with tempfile.TemporaryDirectory(prefix="limba-check-") as name:
        files = written.write_beside(Path(name), str(report.get("dtype")))
    del files["config.json"]  # `written.compare` reads it.
    differ = [name for name, content in files.items() if untrusted_json.read(folder / name) != content]
    return [*rows, *written.compare(folder), _row("settings of modules that differ", differ, f"of {len(files)} files")]
