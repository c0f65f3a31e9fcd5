"""`limba convert check`: are two models the same? Is a folder right in itself? And does a model hold in float16?

limba convert check runs/base exports/base
limba convert check exports/base
limba convert check exports/base --dtype float16 --lines texts.txt --rescale exports/base_for_float16
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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

RECORD = "rescale.json"
_MOST_TEXTS = 64
# Of the largest logit: the norms' epsilon sees that the sum of residuals is smaller.
_ALLOWED = 1e-4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a checkpoint of Limba or T5X, a run, or a Hugging Face folder")
    parser.add_argument("b", metavar="B", nargs="?", help="another one")
    parser.add_argument("--text", default=comparison.TEXT, help="is encoded for the second row (a few languages)")
    numbers = parser.add_argument_group("numbers of 16 bits (A alone)")
    numbers.add_argument(
        "--dtype", choices=("float16", "bfloat16"), help="name the layers that overflow with activations of this type"
    )
    numbers.add_argument("--lines", metavar="FILE", help=f"texts, one a line; the first {_MOST_TEXTS} (--text)")
    numbers.add_argument("--rescale", metavar="OUT", help="write a T5 that holds, and computes the same")
    any_format.add_hint_arguments(parser)
    any_format.add_ignore_argument(parser)


def run(args: argparse.Namespace) -> None:
    if args.b is not None and args.dtype is not None:
        raise ValueError("Give B, to compare A with it, or --dtype, to see whether A holds in this type.")
    if args.dtype is None and (args.lines or args.rescale):
        raise ValueError("--lines and --rescale belong to --dtype.")
    hints = any_format.hints_of(args)
    if args.b is None and args.dtype is None:
        part = next(table.parts("folder"), None)
        if part is None:
            raise ValueError("Give B, to compare A with it, or --dtype, to see whether A holds in this type.")
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
        _check_dtype(a, args)
        return
    settings = {label: _settings(model) for label, model in (("A", a), ("B", b))}
    of_folders: list[Comparison] = []
    in_transformers: list[Comparison] = []
    # A checkpoint may have no vocabulary, and then it says nothing of these; a folder without one lacks files.
    (in_transformers if None in settings.values() else of_folders).extend(folder_settings.compare(*settings.values()))
    is_checkpoint = any(model.vocabulary is None and model.folder is None for model in (a, b))
    (in_transformers if is_checkpoint else of_folders).extend(folder_tokens.compare_all(a, b))
    for label, model in (("A", a), ("B", b)):
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


def _check_dtype(model: Model, args: argparse.Namespace) -> None:
    """Prints what overflows. Raises ValueError if something does, unless a model that holds is written."""
    from limba.convert import written_model
    from limba.convert.compare import half_precision

    out = written_model.choose_empty(args.rescale, model.path) if args.rescale else None
    batch = half_precision.batch_of(model, _texts(args))
    found = half_precision.measure(model, batch, args.dtype)
    print(found.report())
    if out is not None:
        _rescale(model, found, batch, out)
    elif found.too_large:
        remedy = (
            "" if not model.family.has_decoder else " --rescale OUT writes a model that holds, with the same function."
        )
        raise ValueError(f"{model.path} does not hold in {args.dtype}.{remedy}")


def _rescale(model: Model, found: Any, batch: dict[str, np.ndarray], out: Path) -> None:
    from limba.convert import written_model
    from limba.convert.compare import half_precision
    from limba.convert.model_files import rescaled_model
    from limba.files.output_folder import fingerprint

    if not found.too_large:
        raise ValueError(f"{model.path} holds in {found.dtype}: there is nothing to rescale.")
    if not model.family.has_decoder:
        raise ValueError(f"{model.path} is {model.family.title}; only T5s, whose norms allow it, are rescaled.")
    largest = [(layer.path, layer.side, layer.largest) for layer in found.layers]
    new = rescaled_model.rescaled(model, largest, found.limit)
    after = half_precision.measure(new, batch, found.dtype)
    print(f"Rescaled:\n{after.report()}")
    if after.too_large:
        raise ValueError(f"Rescaled, {model.path} still overflows; nothing is written.")
    difference = half_precision.difference(model, new, batch)
    if not difference <= _ALLOWED * found.logits:
        raise ValueError(f"Rescaled, the logits of {model.path} differ by {difference:.2e}; nothing is written.")
    record = {
        "source": str(model.path),
        "fingerprint": fingerprint(model.path),
        "dtype": found.dtype,
        "largest_before": max(layer.largest for layer in found.layers),
        "largest_after": max(layer.largest for layer in after.layers),
        "largest_difference_of_logits": difference,
    }
    written = written_model.write(new, Path(model.path), out, RECORD, record, verify=True)
    print(f"{written} holds in {found.dtype}; in float32 its logits differ by {difference:.2e} of {found.logits:.4g}.")


def _texts(args: argparse.Namespace) -> list[str]:
    if args.lines is None:
        return [args.text]
    texts = [line.strip() for line in Path(args.lines).read_text("utf-8").splitlines() if line.strip()]
    if not texts:
        raise ValueError(f"{args.lines} has no line with text.")
    return texts[:_MOST_TEXTS]


def _description(model: Model) -> str:
    return f"{model.path} ({model.format}, {model.family.name}, {model.num_parameters:,} parameters)"
