"""From a run, a checkpoint or a Hugging Face folder to a folder that CTranslate2 loads, and the proof by that engine.

    python -m convert to-ct2 runs/quickstart exports/quickstart_ct2 --quantization int8

It needs the package ctranslate2 (pip install 'limba[ct2]'), and neither torch nor transformers.
"""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from convert import from_hf, to_hf
from convert.compare import comparison_rows
from convert.engines import ct2_library, ct2_weights
from convert.engines.ct2_encoder_export import EncoderExport
from convert.engines.ct2_export import Ct2Export
from convert.engines.ct2_t5_export import T5Export
from convert.model_files import any_format
from convert.model_files.hf import hf_folder
from convert.model_files.model import NO_HINTS, Model, ModelHints
from limba.files import disk
from limba.files.output_folder import REPORT, choose_out, complete_or_absent, fingerprint, previous
from limba.files.version import VERSION


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", help="a run or checkpoint of Limba or T5X, a folder of transformers', or ORG/NAME on the hub"
    )
    parser.add_argument("out", help="the folder to write")
    parser.add_argument(
        "--quantization",
        choices=ct2_weights.QUANTIZATIONS,
        default="float32",
        help="of the weights (float32); int8 is a quarter of the size, and the check prints what it changes",
    )
    parser.add_argument("--average", action="store_true", help="the average of the parameters that the run kept")
    parser.add_argument("--no-check", action="store_true", help="write without comparing the engine's scores")
    parser.add_argument("--overwrite", action="store_true", help="replace another conversion at OUT")
    any_format.add_hint_arguments(parser)
    any_format.add_ignore_argument(parser)


def run(args: argparse.Namespace) -> None:
    hints = dataclasses.replace(any_format.hints_of(args), average=args.average)
    to_ct2(
        args.source,
        args.out,
        quantization=args.quantization,
        hints=hints,
        verify=not args.no_check,
        overwrite=args.overwrite,
    )


def to_ct2(
    source: str | Path,
    out: str | Path,
    *,
    quantization: str = "float32",
    hints: ModelHints = NO_HINTS,
    verify: bool = True,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Converts, prints what came out, and returns the content of `conversion_report.json`.

    Args:
      source: a run, a checkpoint, a Hugging Face folder or a name on the hub.
      out: the folder to write. If it holds the same conversion already, nothing is written.
      quantization: one of `ct2_weights.QUANTIZATIONS`.
      verify: load the folder in CTranslate2, and compare scores and greedy tokens.
      overwrite: replace another conversion at `out`.

    Raises:
      FileNotFoundError: if there is no model, or no vocabulary.
      ValueError: if CTranslate2 is not installed or does not have the model, `out` is in use or its disk full, or the
        check fails.
    """
    # ----------------------------------------------------- request ---------------------------------------------------
    engine_version = ct2_library.version()
    model = _open(source, hints)
    export: Ct2Export = (T5Export if model.family.has_decoder else EncoderExport)(model, quantization)
    out = choose_out(out, model.path)
    for warning in export.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    request = {
        "format": "ctranslate2",
        "checkpoint": model.path.name,
        "fingerprint": fingerprint(model.path, export.vocabulary_file),
        "family": model.family.name,
        "quantization": quantization,
        "checked": verify,
        "average": hints.average or None,
    }
    if report := previous(out, request, overwrite):
        print(f"{out} holds this conversion of {model.path.name} already.")
        return report
    disk.require(out, ct2_weights.num_bytes(model, quantization))

    # ---------------------------------------------------- files ------------------------------------------------------
    with complete_or_absent(out, request) as folder:
        export.write(folder)
        rows = export.compare(folder) if verify else []
        comparison_rows.require(rows, "What CTranslate2 computes is not the model, nothing was kept")
        report = {
            **request,
            "limba_version": VERSION,
            "ctranslate2_version": engine_version,
            "step": model.step,
            "parameters": model.num_parameters,
            "comparison": comparison_rows.as_json(rows),
        }
        (folder / "README.md").write_text(export.readme(folder, out.name, report, rows), "utf-8")
        report["files"] = sorted({REPORT, *(file.name for file in folder.iterdir() if not file.name.startswith("."))})
        to_hf.write_json(folder / REPORT, report)
    what = f"The average of the parameters at {model.path.name}" if hints.average else model.path.name
    print(f"{what} is converted to {out} for CTranslate2 ({quantization}, {_megabytes(out)}); README.md has a program.")
    print(comparison_rows.table(rows) if verify else "The conversion was not checked (--no-check).")
    return report


def _open(source: str | Path, hints: ModelHints) -> Model:
    """Raises ValueError for a folder of another kind, or without weights."""
    path = source if "://" in str(source) else from_hf.find(str(source), with_runs=True)
    if isinstance(path, Path) and hf_folder.is_folder(path):
        if hints.average:
            raise ValueError(
                f"--average: {path} is a folder of Hugging Face, which has one set of parameters; leave it out."
            )
        if not from_hf.has_weights(path):
            raise FileNotFoundError(f"{path} has no weights, such as model.safetensors: it is not a whole export.")
    return any_format.open_model(path, hints)


def _megabytes(folder: Path) -> str:
    return f"{sum(file.stat().st_size for file in folder.iterdir()) / 1e6:,.1f} MB"
