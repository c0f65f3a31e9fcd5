"""From a checkpoint of Limba or T5X to a folder that transformers loads: weights, configuration, tokenizer, model card,
and the proof.

    python -m convert to-hf runs/quickstart exports/quickstart

Neither torch nor transformers is needed. The folder appears when everything in it is written and has been checked.
"""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from tqdm import tqdm

import limba
from convert.compare import comparison, comparison_rows
from convert.hf import card_example, card_metadata, hf_config, hf_tokenizer, model_card, run_example
from convert.hf.card_metadata import NO_METADATA, Metadata
from convert.model_files import any_format
from convert.model_files.any_format import NO_HINTS, Model, ModelHints
from convert.tensors import flax_files, names, safetensors_files, tensor_parts
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.checkpoints.best import best_checkpoint
from limba.machine.output_folder import REPORT, choose_out, complete_or_absent, fingerprint, previous

_WRITERS: Mapping[str, Callable[..., None]] = {"safetensors": safetensors_files.write, "flax": flax_files.write}
FORMATS = tuple(_WRITERS)
SHARD_GB = 5.0
_GB = 10**9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="a checkpoint of Limba or T5X, or a run's directory for its newest one")
    parser.add_argument("out", help="the folder to write")
    parser.add_argument(
        "--best",
        metavar="MODE:METRIC",
        help="of a run, the checkpoint that is best by a metric of its metrics.jsonl, not the newest: "
        "max:inference_eval/my_task/eval/accuracy, min:training_eval/my_task/loss",
    )
    add_options(parser)
    any_format.add_hint_arguments(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of an export, shared with `convert all`."""
    parser.add_argument("--format", choices=(*FORMATS, "both"), default="both", help="of the weights (both)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights (float32)")
    parser.add_argument("--shard_gb", type=float, default=SHARD_GB, help="split weights into files of this size (5)")
    parser.add_argument("--no-check", action="store_true", help="write without reading back and comparing logits")
    parser.add_argument("--overwrite", action="store_true", help="replace another conversion at OUT")
    card_metadata.add_arguments(parser)


def run(args: argparse.Namespace) -> None:
    checkpoint = args.checkpoint if args.best is None else str(best_checkpoint(args.checkpoint, args.best))
    to_hf(checkpoint, args.out, **options(args))


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `to_hf` from the command line."""
    if not 0 < args.shard_gb < math.inf:
        raise ValueError(f"--shard_gb {args.shard_gb}: the size of a file in GB is above 0 and finite.")
    return {
        "formats": FORMATS if args.format == "both" else (args.format,),
        "dtype": args.dtype,
        "hints": any_format.hints_of(args),
        "shard_bytes": int(args.shard_gb * _GB),
        "verify": not args.no_check,
        "overwrite": args.overwrite,
        "metadata": card_metadata.of_arguments(args),
    }


def to_hf(
    checkpoint: str | Path,
    out: str | Path,
    *,
    formats: Sequence[str] = FORMATS,
    dtype: str = "float32",
    hints: ModelHints = NO_HINTS,
    shard_bytes: int = int(SHARD_GB * _GB),
    verify: bool = True,
    overwrite: bool = False,
    metadata: Metadata = NO_METADATA,
) -> dict[str, Any]:
    """Exports a checkpoint, prints what came out, and returns the content of `conversion_report.json`.

    Args:
      checkpoint: a checkpoint of Limba or T5X, or a run's directory for its newest one.
      out: the folder to write. If it holds the same export already, nothing is written.
      formats, dtype: "safetensors", "flax" or both; "float32" or "bfloat16".
      shard_bytes: weights above it are split into several files.
      verify: read the files back, compare tensors, logits and tokens.
      overwrite: replace another conversion at `out`.
      metadata: what the model card says beside what the run knows.

    Raises:
      FileNotFoundError: if there is no checkpoint or no SentencePiece model.
      ValueError: if the checkpoint cannot be exported, `out` is in use, or the check fails.
    """
    # ----------------------------------------------------- request ---------------------------------------------------
    model = any_format.open_checkpoint(checkpoint, hints)
    out = choose_out(out, model.path)
    tokenizer = hf_tokenizer.from_vocabulary(model.known_vocabulary())
    for warning in tokenizer.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    request = {
        "checkpoint": model.path.name,
        "fingerprint": fingerprint(model.path, tokenizer.model_file),
        "family": model.family.name,
        "formats": list(formats),
        "dtype": dtype,
        "shard_bytes": shard_bytes,
        "checked": verify,
        "card": metadata.request() or None,
    }
    if report := previous(out, request, overwrite):
        print(f"{out} holds this export of {model.path.name} already.")
        return report

    # ---------------------------------------------------- files ------------------------------------------------------
    lengths = model.info.get("feature_lengths", {})
    config = hf_config.model_config(model.config, model.family, dtype, lengths.get("inputs"))
    generation = hf_config.generation_config(model.family, lengths.get("targets"))
    num_bytes = model.num_parameters * jnp.dtype(dtype).itemsize * len(formats)
    with complete_or_absent(out, request) as folder:
        _write_json(folder / "config.json", config)
        _write_json(folder / "generation_config.json", generation)
        hf_tokenizer.write(tokenizer, folder)
        with tqdm(total=num_bytes, desc="writing", unit="B", unit_scale=True, file=sys.stderr) as progress:
            for format_ in formats:
                _WRITERS[format_](folder, _stored(model, format_, dtype), progress.update, shard_bytes)

        comparisons = {format_: _check(model, folder, format_) for format_ in (formats if verify else ())}
        report = {
            **request,
            "limba_version": limba.__version__,
            "step": model.step,
            "parameters": model.num_parameters,
            "comparisons": {format_: comparison_rows.as_json(rows) for format_, rows in comparisons.items()},
        }
        _write_card(folder, out.name, model, tokenizer, report, metadata)
        report["files"] = sorted({REPORT, *(file.name for file in folder.iterdir() if not file.name.startswith("."))})
        _write_json(folder / REPORT, report)
    print(f"{model.path.name} is exported to {out} ({', '.join(formats)}, {dtype}).")
    for format_, rows in comparisons.items():
        print(f"{format_}:\n{comparison_rows.table(rows)}")
    if not verify:
        print("The export was not checked (--no-check).")
    return report


def _check(model: Model, folder: Path, format_: str) -> list[comparison_rows.Comparison]:
    rows = comparison.compare(model, any_format.open_model(folder, format_=format_))
    comparison_rows.require(rows, f"The {format_} weights are not the checkpoint's model, nothing was kept")
    return rows


def _write_card(
    folder: Path,
    name: str,
    model: Model,
    tokenizer: hf_tokenizer.Tokenizer,
    report: Mapping[str, Any],
    metadata: Metadata,
) -> None:
    gin, metrics = model_card.run_record(model.path)
    facts = model_card.Facts(
        name=name,
        family=model.family,
        network=model.config,
        num_parameters=model.num_parameters,
        vocabulary=tokenizer.vocabulary,
        step=model.step,
        formats=report["formats"],
        dtype=report["dtype"],
        run=model.info,
        gin=gin,
        metrics=metrics,
        comparisons=report["comparisons"],
        metadata=metadata,
        example=_example(model, gin, metadata.example),
    )
    model_card.write(folder, facts)


def _example(model: Model, gin: str, text: str) -> card_example.Example | None:
    """For the card: the run's own, with the user's text if there is one; None if the run names no task."""
    found = None
    if model.info.get("task") and run_example.modules(gin):
        try:
            found = run_example.of_run(model.info, gin)
        except ValueError as error:
            remedy = "" if text else " The example of the model card is a neutral one; --example TEXT gives another."
            print(f"warning: the data of the run cannot be read: {str(error).rstrip('.')}.{remedy}", file=sys.stderr)
    if not text:
        return found
    return dataclasses.replace(found or card_example.Example("text", text), kind="text", inputs=text, targets="")


def _stored(model: Model, format_: str, dtype: str) -> dict[str, SavedTensor]:
    """The tensors as the files of a format have them."""
    result = {}
    for row in names.table(model.config):
        stored = row.flax if format_ == "flax" else row.torch
        tensor = tensor_parts.cast(model.tensors[row.limba], jnp.dtype(dtype), f"The checkpoint's {row.limba}")
        result[model.family.tensor_name(stored.name)] = stored.orient(tensor)
    return result


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
