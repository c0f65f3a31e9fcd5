"""From a checkpoint of Limba or T5X to a folder that transformers loads: weights, configuration, tokenizer, model card,
and the proof.

    python -m convert to-hf runs/quickstart exports/quickstart

Neither torch nor transformers is needed. The folder appears when everything in it is written and has been checked.
"""

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from tqdm import tqdm

from limba.addons import table
from limba.checkpoints.best import best_checkpoint
from limba.convert.compare import auto_tokenizer, comparison, comparison_rows, folder_tokens
from limba.convert.exports.encoder_export import EncoderExport
from limba.convert.exports.export import Export
from limba.convert.exports.t5_export import T5Export
from limba.convert.model_files import any_format
from limba.convert.model_files.hf import hf_tokenizer
from limba.convert.model_files.model import NO_HINTS, Model, ModelHints
from limba.convert.tensors import flax_files, safetensors_files
from limba.files import json_text
from limba.files.output_folder import REPORT, choose_out, complete_or_absent, fingerprint, previous, sealed
from limba.files.version import VERSION

_WRITERS: Mapping[str, Callable[..., None]] = {"safetensors": safetensors_files.write, "flax": flax_files.write}
FORMATS = tuple(_WRITERS)
SHARD_GB = 5.0
_GB = 10**9
# What a LoRA's run.json says of the model that it began with, too.
_OF_BASE = ("network_class", "network", "vocabulary", "feature_lengths")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="a checkpoint of Limba or T5X, or a run's directory for its newest one")
    parser.add_argument("out", help="the folder to write")
    parser.add_argument(
        "--best",
        metavar="MODE:METRIC",
        help="of a run, the checkpoint that is best by a metric of its metrics.jsonl, not the newest: "
        "max:inference_eval/my_task/eval/accuracy, min:training_eval/my_task/loss",
    )
    parser.add_argument(
        "--no-lora",
        action="store_true",
        help="of a LoRA, the model that it began with: the kernels without the adapters (they are merged)",
    )
    parser.add_argument(
        "--generator", action="store_true", help="of an ELECTRA's pre-training, the generator in place of the encoder"
    )
    parser.add_argument(
        "--mask_token",
        action="store_true",
        help="of a T5, <extra_id_0> as the tokenizer's mask token, and padding as its BOS, for programs that look for "
        "them (BabyLM's evaluation, docs/scores.md)",
    )
    add_options(parser)
    any_format.add_hint_arguments(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of an export, shared with `convert all`."""
    parser.add_argument("--average", action="store_true", help="the average of the parameters that the run kept")
    parser.add_argument("--format", choices=(*FORMATS, "both"), help="of the weights (all that the class has)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights (float32)")
    parser.add_argument("--shard_gb", type=float, default=SHARD_GB, help="split weights into files of this size (5)")
    parser.add_argument("--no-check", action="store_true", help="write without reading back and comparing logits")
    parser.add_argument("--overwrite", action="store_true", help="replace another conversion at OUT")
    for part in table.parts("card"):
        part.add_arguments(parser)


def run(args: argparse.Namespace) -> None:
    checkpoint = args.checkpoint if args.best is None else str(best_checkpoint(args.checkpoint, args.best))
    given = options(args)
    hints = dataclasses.replace(given["hints"], without_lora=args.no_lora, generator=args.generator)
    to_hf(checkpoint, args.out, **given | {"hints": hints, "mask_token": args.mask_token})


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `to_hf` from the command line."""
    if not 0 < args.shard_gb < math.inf:
        raise ValueError(f"--shard_gb {args.shard_gb}: the size of a file in GB is above 0 and finite.")
    return {
        "formats": {None: None, "both": FORMATS}.get(args.format, (args.format,)),
        "dtype": args.dtype,
        "hints": dataclasses.replace(any_format.hints_of(args), average=args.average),
        "shard_bytes": int(args.shard_gb * _GB),
        "verify": not args.no_check,
        "overwrite": args.overwrite,
        "card": {name: value for part in table.parts("card") for name, value in part.given(args).items()},
    }


def to_hf(
    checkpoint: str | Path,
    out: str | Path,
    *,
    formats: Sequence[str] | None = None,
    dtype: str = "float32",
    hints: ModelHints = NO_HINTS,
    shard_bytes: int = int(SHARD_GB * _GB),
    verify: bool = True,
    overwrite: bool = False,
    card: Mapping[str, Any] = MappingProxyType({}),
    named: Path | None = None,
    mask_token: bool = False,
) -> dict[str, Any]:
    """Exports a checkpoint, prints what came out, and returns the content of `conversion_report.json`.

    Args:
      checkpoint: a checkpoint of Limba or T5X, or a run's directory for its newest one.
      out: the folder to write. If it holds the same export already, nothing is written.
      formats: "safetensors", "flax" or both; None takes all that the model's class has.
      dtype: "float32" or "bfloat16".
      shard_bytes: weights above it are split into several files.
      verify: read the files back, compare tensors, logits and tokens.
      overwrite: replace another conversion at `out`.
      card: what the model card says beside what the run knows, as the add-on that writes it has it.
      named: the folder that the messages name, to which the caller moves the files; None is `out`.
      mask_token: name a T5's first sentinel as the tokenizer's mask token, and padding as its BOS.

    Raises:
      FileNotFoundError: if there is no checkpoint or no SentencePiece model.
      ValueError: if the checkpoint cannot be exported, `out` is in use, or the check fails.
    """
    # ----------------------------------------------------- request ---------------------------------------------------
    export = _open(checkpoint, hints)
    model = export.model
    out = choose_out(out, model.path)
    for part in table.parts("card"):
        part.check(export, card)
    for warning in export.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    formats = _formats(formats, export)
    request = {
        "checkpoint": model.path.name,
        "fingerprint": fingerprint(model.path, export.vocabulary_file),
        "family": model.family.name,
        "formats": list(formats),
        "dtype": dtype,
        "shard_bytes": shard_bytes,
        "checked": verify,
        "card": dict(card) or None,
        "average": hints.average or None,
        "without_lora": hints.without_lora or None,
        **({"generator": True} if hints.generator else {}),
        **({"mask_token": True} if mask_token else {}),
    }
    if report := previous(out, request, overwrite):
        print(f"{named or out} holds this export of {model.path.name} already.")
        return report

    # ---------------------------------------------------- files ------------------------------------------------------
    with complete_or_absent(out, request) as folder:
        write_files(folder, export, formats, dtype, shard_bytes, mask_token)
        comparisons = check_files(folder, export, formats) if verify else {}
        report = {
            **request,
            "limba_version": VERSION,
            "step": model.step,
            "parameters": model.num_parameters,
            "comparisons": {format_: comparison_rows.as_json(rows) for format_, rows in comparisons.items()},
        }
        for part in table.parts("card"):
            part.write(folder, out.name, export, report, card)
        report = sealed(folder, report, (file.name for file in folder.iterdir() if not file.name.startswith(".")))
        write_json(folder / REPORT, report)
    what = f"The average of the parameters at {model.path.name}" if hints.average else model.path.name
    what = f"The generator of {what}" if hints.generator else what
    what = f"{what} without its LoRA adapters" if hints.without_lora else what
    print(f"{what} is exported to {named or out} ({', '.join(formats)}, {dtype}).")
    print(comparison_rows.tables(comparisons) if verify else "The export was not checked (--no-check).")
    return report


def _open(checkpoint: str | Path, hints: ModelHints) -> Export:
    model = any_format.open_checkpoint(checkpoint, hints)
    if hints.without_lora:  # What the run says of its training is not the base's.
        info = {name: model.info[name] for name in _OF_BASE if name in model.info}
        model = dataclasses.replace(model, info=info, step=model.info.get("initial_step", 0))
    return export_of(model)


def export_of(model: Model[Any, Any]) -> Export:
    """The export of a model of its kind."""
    return T5Export(model) if model.family.has_decoder else EncoderExport(model)


def _formats(asked: Sequence[str] | None, export: Export) -> Sequence[str]:
    """The formats to write: those that the user asks for, or all that the model's class has."""
    if missing := [format_ for format_ in asked or () if format_ not in export.formats]:
        raise ValueError(
            f"--format {missing[0]}: transformers never had it for all classes such as {export.model_class}; give "
            "--format safetensors."
        )
    return asked or export.formats


def write_files(
    folder: Path, export: Export, formats: Sequence[str], dtype: str, shard_bytes: int, mask_token: bool = False
) -> None:
    """Writes configuration, tokenizer and weights, with a progress bar."""
    for name, content in export.write_beside(folder, dtype).items():
        write_json(folder / name, content)
    if mask_token:
        hf_tokenizer.name_mask(folder)
    num_bytes = export.model.num_parameters * jnp.dtype(dtype).itemsize * len(formats)
    with tqdm(total=num_bytes, desc="writing", unit="B", unit_scale=True, disable=None) as progress:
        for format_ in formats:
            _WRITERS[format_](folder, export.stored(format_, dtype), progress.update, shard_bytes)


def check_files(folder: Path, export: Export, formats: Sequence[str]) -> dict[str, list[comparison_rows.Comparison]]:
    """Reads the files back; the rows of the comparison by format. Raises ValueError if they are not the model."""
    theirs = auto_tokenizer.check(folder, folder_tokens.texts_with(comparison.TEXT))
    tokens = folder_tokens.compare("B", export.model, comparison.TEXT, folder, theirs)
    of_tokenizer = [*auto_tokenizer.row(theirs), *tokens]
    return {format_: [*of_tokenizer, *_check(export, folder, format_)] for format_ in formats}


def _check(export: Export, folder: Path, format_: str) -> list[comparison_rows.Comparison]:
    rows = export.compare(folder, format_)
    comparison_rows.require(rows, f"The {format_} weights are not the checkpoint's model, nothing was kept")
    return rows


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a file of JSON that people read."""
    path.write_text(json_text.dumps(content, indent=2) + "\n", "utf-8")
