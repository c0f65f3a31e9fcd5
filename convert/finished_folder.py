"""A folder that Limba wrote for an engine or for sentence-transformers, and a model: is the folder still this model?

`conversion_report.json` says of what kind it is and lists the files and their hashes.
"""

import importlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from convert import engine_folder
from convert.compare import exported_files, folder_tokens
from convert.compare.comparison import TEXT
from convert.compare.comparison_rows import Comparison
from convert.exports import sentence_folder
from convert.model_files import any_format
from convert.model_files.model import Model
from limba.files import disk
from limba.files.output_folder import REPORT, read_report
from limba.files.untrusted_files import cut, shown, some
from limba.files.version import VERSION

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
    """Rows of the files that are lost, changed, or not the conversion's."""
    there = set(sentence_folder.files(folder))
    yield from exported_files.compare(label, folder, report, there, by_hash=True)
    if others := sorted(there - {*(report.get("files") or ())}):
        note = f"{exported_files.NOT_COMPARED}{some([*map(cut, others)])}"
        yield Comparison(f"files not read, {label}", None, 0, note)


def compare(model: Model, folder: Path, report: Mapping[str, Any]) -> Iterator[Comparison]:
    """Compares the folder with a model: the conversion is repeated, its files are compared, and where they are the
    same, it is checked as a new one is. So no library reads what a stranger may have put there.

    Raises:
      ValueError: if the engine is not installed or does not have the model, or a file is damaged.
    """
    if kind(report) != _SENTENCES:
        engine = importlib.import_module(f"convert.{_ENGINES[kind(report)]}").ENGINE
        yield from engine_folder.compare(engine, model, folder, report)
        return
    pooling, length, dtype = report["pooling"], report.get("max_seq_length"), report.get("dtype")
    if pooling not in sentence_folder.POOLINGS or type(length) is not int or dtype not in sentence_folder.DTYPES:
        raise ValueError(
            f"{folder / REPORT} is damaged: pooling is {shown(pooling)}, max_seq_length {shown(length)}, and dtype "
            f"{shown(dtype)}."
        )
    written = sentence_folder.of_model(model, pooling, report.get("normalize") is True, length)
    with tempfile.TemporaryDirectory(prefix="limba-check-") as name:
        anew = Path(name)
        disk.require(anew, written.num_bytes(dtype), exported_files.REMEDY)
        written.write(anew, dtype)
        others = exported_files.other_versions(report, {"limba_version": VERSION})
        yield (row := exported_files.compare_anew("B", folder, anew, report.get("files") or (), others))
        if row.value == 0:
            yield from folder_tokens.compare("B", any_format.open_model(anew), TEXT)
            yield from written.compare(anew)
