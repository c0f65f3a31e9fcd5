"""`limba convert check`: are two models the same? Add-ons check one alone: its folder, and its numbers of 16 bits.

limba convert check runs/base exports/base
limba convert check exports/base
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons import table
from limba.convert import finished_folder, to_hf
from limba.convert.compare import (
    comparison,
    comparison_rows,
    exported_files,
    folder_files,
    folder_settings,
    folder_tokens,
)
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files import any_format
from limba.convert.model_files.model import Model, ModelHints


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a checkpoint of Limba or T5X, a run, or a Hugging Face folder")
    parser.add_argument("b", metavar="B", nargs="?", help="another one")
    parser.add_argument("--text", default=comparison.TEXT, help="is encoded for the second row (a few languages)")
    for part in table.parts("check_alone"):
        part.add_flags(parser)
    any_format.add_hint_arguments(parser)
    any_format.add_ignore_argument(parser)


def run(args: argparse.Namespace) -> None:
    for part in table.parts("check_alone"):
        part.check_flags(args)
    alone = next((part for part in table.parts("check_alone") if part.is_asked(args)), None)
    hints = any_format.hints_of(args)
    if args.b is None and alone is None:
        part = next(table.parts("folder"), None)
        if part is None:
            raise ValueError("Give B, to compare A with it.")
        part.check(args.a, hints)
        return
    if args.b is not None and (report := finished_folder.report_of(args.b)) is not None:
        _check_finished(args.a, Path(args.b).expanduser(), report, hints)
        return
    a = any_format.open_model(args.a, hints)
    b = any_format.open_model(args.b, hints) if args.b is not None else None
    for label, model in (("A", a), ("B", b)):
        if model is not None:
            print(f"{label}: {_description(model)}")
            for warning in model.warnings:
                print(f"warning: {warning}", file=sys.stderr)
    if b is None:
        assert alone is not None
        alone.run(a, args)
        return
    settings = {label: _settings(model) for label, model in (("A", a), ("B", b))}
    of_folders: list[Comparison] = []
    in_transformers: list[Comparison] = []
    # A checkpoint may have no vocabulary, and then it says nothing of these; a folder without one lacks files.
    (in_transformers if None in settings.values() else of_folders).extend(folder_settings.compare(*settings.values()))
    is_checkpoint = any(model.vocabulary is None and model.folder is None for model in (a, b))
    (in_transformers if is_checkpoint else of_folders).extend(folder_tokens.compare_all(a, b))
    for label, model, other in (("A", a, b), ("B", b, a)):
        of_folders += [row for part in table.parts("folder") for row in part.compare_written(label, model, other)]
        in_transformers += folder_tokens.compare(label, model, args.text)
        of_folders += folder_files.compare(label, model, hints)
        if (found := settings[label]) is not None:
            of_folders += folder_settings.contradictions(label, found)
    rows = [*in_transformers, *of_folders, *comparison.compare(a, b, args.text)]
    _conclude(rows, of_folders, in_transformers)


def _check_finished(a: str, folder: Path, report: Mapping[str, Any], hints: ModelHints) -> None:
    """B is a folder for an engine, or of sentence-transformers."""
    rows = [*finished_folder.compare_files("B", folder, report)]
    if all(row.holds for row in rows):  # An engine's reader need not survive damaged files.
        model = any_format.open_model(a, hints, takes_vectors=True)
        print(f"A: {_description(model)}")
        rows += finished_folder.compare(model, folder, report)
    print(f"B: {folder} ({finished_folder.kind(report)})")
    _conclude(rows, [row for row in rows if row.note.startswith(exported_files.NOT_COMPARED)], [])


def _conclude(rows: list[Comparison], must: Sequence[Comparison], others: Sequence[Comparison]) -> None:
    """Prints the table and what it says.

    Args:
      must: rows of files; one that is not compared is an error, too, unless it may differ.
      others: rows that may not be compared, such as those of a second reader of files, which may not be installed.

    Raises:
      ValueError: if a row does not hold, or a file was not compared.
    """
    print(comparison_rows.table(rows))
    comparison_rows.require(rows, "A and B are not the same model")
    may_differ = [row for row in must if exported_files.may_differ(row)]
    if not_compared := _not_compared([row for row in must if row not in may_differ]):
        raise ValueError(f"A and B do not differ in what was compared. Not compared: {not_compared}.")
    found = _not_compared([*may_differ, *others])
    but = f" in what was compared. Not compared: {found}" if found else ""
    print(f"A and B are the same model{but}.")


def _not_compared(rows: Sequence[Comparison]) -> str:
    return "; ".join(
        f"{row.what} ({row.note.removeprefix(exported_files.NOT_COMPARED)})" for row in rows if row.value is None
    )


def _settings(model: Model) -> folder_settings.Settings | None:
    """The settings in a folder's files; of a checkpoint, those that `to-hf` writes. None where they are not known."""
    if model.folder is not None:
        return folder_settings.of_folder(Path(str(model.path))) if Path(str(model.path)).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="limba-check-") as name:
        try:
            written = to_hf.export_of(model).write_beside(Path(name), str(model.dtype))
        except FileNotFoundError:  # It has no vocabulary.
            return None
        for file, content in written.items():
            to_hf.write_json(Path(name) / file, content)
        return folder_settings.of_folder(Path(name), is_run=True)


def _description(model: Model) -> str:
    return f"{model.path} ({model.format}, {model.family.name}, {model.num_parameters:,} parameters)"
