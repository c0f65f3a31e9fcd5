"""From a run, a checkpoint or a Hugging Face folder to a folder that an engine loads, and the proof by that engine.

What `to-ct2`, `to-onnx` and `to-gguf` have in common.
"""

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from limba.addons.engines.engine_export import AnyExport
from limba.checkpoint_files import run_folder
from limba.convert import from_hf
from limba.convert.compare import comparison_rows, exported_files
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import hf_folder
from limba.convert.model_files.model import NO_HINTS, Model, ModelHints
from limba.convert.to_hf import write_json
from limba.files import disk
from limba.files.output_folder import REPORT, choose_out, complete_or_absent, fingerprint, previous, sealed
from limba.files.untrusted_files import shown
from limba.files.version import VERSION


@dataclasses.dataclass(frozen=True)
class Engine:
    """An engine.

    Attributes:
      format: in reports.
      quantizations: of weights; the first one is float32.
      version: that of its package. Raises ValueError if something is missing that the conversion needs.
      export: of a model, with weights of a quantization. Raises ValueError if the engine does not have the model.
    """

    format: str
    quantizations: tuple[str, ...]
    version: Callable[[], str]
    export: Callable[[Model, str], AnyExport]


def add_arguments(parser: argparse.ArgumentParser, engine: Engine, quantization_help: str) -> None:
    parser.add_argument(
        "source", help="a run or checkpoint of Limba or T5X, a folder of transformers', or ORG/NAME on the hub"
    )
    parser.add_argument("out", help="the folder to write")
    parser.add_argument("--quantization", choices=engine.quantizations, default="float32", help=quantization_help)
    parser.add_argument("--average", action="store_true", help="the average of the parameters that the run kept")
    parser.add_argument("--no-check", action="store_true", help="write without comparing the engine's scores")
    parser.add_argument("--overwrite", action="store_true", help="replace another conversion at OUT")
    any_format.add_hint_arguments(parser)
    any_format.add_ignore_argument(parser)


def run(engine: Engine, args: argparse.Namespace) -> None:
    convert(
        engine,
        args.source,
        args.out,
        quantization=args.quantization,
        hints=dataclasses.replace(any_format.hints_of(args), average=args.average),
        verify=not args.no_check,
        overwrite=args.overwrite,
    )


def convert(
    engine: Engine,
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
      quantization: one of the engine's.
      verify: load the folder in the engine, and compare what it computes.
      overwrite: replace another conversion at `out`.

    Raises:
      FileNotFoundError: if there is no model, or no vocabulary.
      ValueError: if the engine is not installed or does not have the model, `out` is in use or its disk full, or the
        check fails.
    """
    # ----------------------------------------------------- request ---------------------------------------------------
    version = engine.version()
    model = open_source(source, hints)
    export = engine.export(model, quantization)
    out = choose_out(out, model.path)
    for warning in export.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    request = make_request(engine, export, hints.average, verify)
    if report := previous(out, request, overwrite):
        print(f"{out} holds this conversion of {model.path.name} already.")
        return report
    disk.require(out, export.num_bytes)

    # ---------------------------------------------------- files ------------------------------------------------------
    with complete_or_absent(out, request) as folder:
        export.write(folder)
        rows = export.compare(folder) if verify else []
        report = complete(export, folder, out.name, {**request, version_key(export): version}, rows)
    what = f"The average of the parameters at {model.path.name}" if hints.average else model.path.name
    size = f"{sum(file.stat().st_size for file in out.iterdir()) / 1e6:,.1f} MB"
    print(f"{what} is converted to {out} for {export.engine} ({quantization}, {size}); README.md has a program.")
    print(comparison_rows.table(rows) if verify else "The conversion was not checked (--no-check).")
    return report


def make_request(engine: Engine, export: AnyExport, average: bool, verify: bool) -> dict[str, Any]:
    """Everything that the content of a folder depends on; see `convert`."""
    path = export.model.path
    return {
        "format": engine.format,
        "checkpoint": path.name,
        "fingerprint": fingerprint(path, export.vocabulary_file),
        "family": export.model.family.name,
        "quantization": export.quantization,
        "checked": verify,
        "average": average or None,
    }


def version_key(export: AnyExport | type[AnyExport]) -> str:
    """The key of a report that has the version of the engine's package."""
    return f"{export.package}_version"


def complete(
    export: AnyExport, folder: Path, name: str, begun: Mapping[str, Any], rows: list[Comparison]
) -> dict[str, Any]:
    """Writes README.md and the report into a folder that has the model's files, and returns the report.

    Args:
      name: that the folder will have.
      begun: of the report: the request and the version of the engine's package.
      rows: of the comparison.

    Raises:
      ValueError: if a row says that the folder is not the model.
    """
    comparison_rows.require(rows, f"What is written for {export.engine} is not the model, nothing was kept")
    export.remove_unneeded(folder)
    model = export.model
    report = {
        **begun,
        "limba_version": VERSION,
        "step": model.step,
        "parameters": model.num_parameters,
        # What `limba serve` reads.
        "vocabulary": _in_folder(any_format.known_vocabulary(model)),
        "has_blanks": model.info.get("has_blanks", True),
        "longest_row": getattr(model.config, "longest_row", None),
        "comparison": comparison_rows.as_json(rows),
    }
    (folder / "README.md").write_text(export.readme(folder, name, report, rows), "utf-8")
    report = sealed(folder, report, (file.name for file in folder.iterdir() if not file.name.startswith(".")))
    write_json(folder / REPORT, report)
    return report


def compare(engine: Engine, model: Model, folder: Path, report: Mapping[str, Any]) -> Iterator[Comparison]:
    """Compares a folder that was written for an engine with a model: by files that the conversion writes now, which are
    checked in that engine if those of the folder are the same.

    Raises:
      ValueError: if the engine is not installed or does not have the model, or a file is damaged.
    """
    version = engine.version()
    quantization = report.get("quantization")
    if quantization not in engine.quantizations:
        raise ValueError(
            f"{folder / REPORT} is damaged: its quantization is {shown(quantization)}, and {engine.format} has "
            f"{', '.join(engine.quantizations)}."
        )
    export = engine.export(model, quantization)
    others = exported_files.other_versions(report, {"limba_version": VERSION, version_key(export): version})
    with tempfile.TemporaryDirectory(prefix="limba-check-") as name:
        anew = Path(name)
        disk.require(anew, export.num_bytes, exported_files.REMEDY)
        export.write(anew)
        yield (row := exported_files.compare_anew("B", folder, anew, report.get("files") or (), others, export.is_same))
        if row.value == 0:
            yield from export.compare(anew)


def open_source(source: str | Path, hints: ModelHints) -> Model:
    """The model of a conversion. Raises ValueError for a folder of another kind, or without weights."""
    path = source if "://" in str(source) else from_hf.find(str(source), with_runs=True)
    if isinstance(path, Path) and hf_folder.is_folder(path):
        if hints.average:
            raise ValueError(
                f"--average: {path} is a folder of Hugging Face, which has one set of parameters; leave it out."
            )
        if not from_hf.has_weights(path):
            raise FileNotFoundError(f"{path} has no weights, such as model.safetensors: it is not a whole export.")
    return any_format.open_model(path, hints)


def _in_folder(vocabulary: Mapping[str, Any]) -> dict[str, Any]:
    """What `run.json` says of a vocabulary, whose file is in the folder now."""
    if run_folder.is_bytes(vocabulary):
        return dict(vocabulary)
    return run_folder.with_vocabulary_file(vocabulary, run_folder.vocabulary_name(vocabulary))
