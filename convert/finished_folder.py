"""A folder that an add-on wrote for an engine or a library, and a model: is the folder still this model?

`conversion_report.json` says of what kind it is and lists the files and their hashes. The part "check" of an add-on
(`limba/addons/table.py`) knows its kinds of folder and repeats the conversion.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from limba.addons import table
from limba.convert.compare import exported_files
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files.model import Model
from limba.files.output_folder import read_report
from limba.files.untrusted_files import cut, some


def report_of(path: str) -> dict[str, Any] | None:
    """The report of such a folder; None of everything else. Raises ValueError if it is damaged."""
    folder = Path(path).expanduser()
    if "://" in path or not folder.is_dir() or not (report := read_report(folder)):
        return None
    return report if kind(report) else None


def kind(report: Mapping[str, Any]) -> str:
    """What the folder is for; "" for transformers."""
    return next((found for part in table.parts("check") if (found := part.kind(report))), "")


def compare_files(label: str, folder: Path, report: Mapping[str, Any]) -> Iterator[Comparison]:
    """Rows of the files that are lost, changed, or not the conversion's."""
    there = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    there = {name for name in there if not name.startswith(".")}
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
    part = next(part for part in table.parts("check") if part.kind(report))
    yield from part.compare(model, folder, report)
