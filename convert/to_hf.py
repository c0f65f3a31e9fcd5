"""From a Limba checkpoint to a folder that transformers loads: weights, configuration, tokenizer, and the proof.

    python -m convert to-hf runs/quickstart exports/quickstart

Neither torch nor transformers is needed. The folder appears when everything in it is written and has been checked.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import limba
from convert import check, hf_config, hf_tokenizer, hf_weights, names
from convert.folder import complete_or_absent
from limba import checkpoints
from limba.network import T5Config

FORMATS = {"safetensors": hf_weights.SAFETENSORS, "flax": hf_weights.FLAX}
REPORT = "conversion_report.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="a checkpoint, or a run's directory for its newest one")
    parser.add_argument("out", help="the folder to write")
    parser.add_argument("--format", choices=(*FORMATS, "both"), default="both", help="of the weights (both)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the weights (float32)")
    parser.add_argument("--vocab", metavar="FILE", help="the SentencePiece model, if the checkpoint lacks it")
    parser.add_argument("--no-check", action="store_true", help="write without reading back and comparing logits")
    parser.add_argument("--overwrite", action="store_true", help="replace what stands at OUT")


def run(args: argparse.Namespace) -> None:
    to_hf(
        args.checkpoint,
        args.out,
        formats=tuple(FORMATS) if args.format == "both" else (args.format,),
        dtype=args.dtype,
        vocab=args.vocab,
        verify=not args.no_check,
        overwrite=args.overwrite,
    )


def to_hf(
    checkpoint: str | Path,
    out: str | Path,
    *,
    formats: Sequence[str] = tuple(FORMATS),
    dtype: str = "float32",
    vocab: str | None = None,
    verify: bool = True,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Exports a checkpoint, prints what came out, and returns the content of `conversion_report.json`.

    Args:
      checkpoint: a checkpoint, or a run's directory for its newest one.
      out: the folder to write. One that holds this very export already is left as it is.
      formats: "safetensors", "flax" or both.
      dtype: of the stored tensors, "float32" or "bfloat16".
      vocab: the SentencePiece model; by default the one kept in the checkpoint, else where the run had it.
      verify: read the files back, compare tensors and logits.
      overwrite: replace what stands at `out`.

    Raises:
      FileNotFoundError: if there is no checkpoint or no SentencePiece model.
      ValueError: if the checkpoint cannot be exported, `out` is in use, or the check fails.
    """
    out = Path(out).expanduser().absolute()

    # ----------------------------------------------- what is asked for -----------------------------------------------
    path = checkpoints.find_checkpoint(checkpoint)
    info = checkpoints.load_run_info(path)
    config = _network_config(path, info["network"])
    kept = path / "run" / "spiece.model"  # travels with the checkpoint
    tokenizer = hf_tokenizer.from_vocabulary(info["vocabulary"], vocab or (str(kept) if kept.is_file() else None))
    hf_tokenizer.check_sizes(tokenizer.vocabulary, config.vocab_size, str(path))
    for warning in tokenizer.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    request = {
        "checkpoint": path.name,
        "fingerprint": _fingerprint(path, *([tokenizer.model_file] if tokenizer.model_file else [])),
        "formats": list(formats),
        "dtype": dtype,
        "checked": verify,
    }
    if not overwrite and (report := _previous_report(out, request)):
        print(f"{out} holds this export of {path.name} already.")
        _print_differences(report)
        return report

    # --------------------------------------------------- tensors -----------------------------------------------------
    table = names.table(config)
    params = names.unroll(checkpoints.load_params(path), config.param_scan_axis)
    names.verify(
        f"The checkpoint {path}", {name: x.shape for name, x in params.items()}, {t.limba: t.shape for t in table}
    )

    # ---------------------------------------------------- files ------------------------------------------------------
    with complete_or_absent(out) as folder:
        model_config = hf_config.model_config(config, dtype, info.get("feature_lengths", {}).get("inputs"))
        _write_json(folder / "config.json", model_config)
        _write_json(folder / "generation_config.json", hf_config.generation_config())
        hf_tokenizer.write(tokenizer, folder)
        num_bytes = sum(x.size for x in params.values()) * jnp.dtype(dtype).itemsize * len(formats)
        with tqdm(total=num_bytes, desc="writing", unit="B", unit_scale=True, file=sys.stderr) as progress:
            for format_ in formats:
                _write_weights(folder, format_, table, params, dtype, progress.update)
        differences = check.check_export(folder, formats, config, params, dtype) if verify else {}
        report = {
            **request,
            "limba_version": limba.__version__,
            "parameters": int(sum(x.size for x in params.values())),
            "largest_logits_difference": differences,
        }
        _write_json(folder / REPORT, report)
    print(f"{path.name} is exported to {out} ({', '.join(FORMATS[f] for f in formats)}, {dtype}).")
    _print_differences(report)
    return report


def _network_config(path: Path, fields: dict[str, Any]) -> T5Config:
    try:
        return T5Config(**fields)
    except TypeError as error:
        raise ValueError(
            f"{path}/run/run.json does not describe a limba.network.T5Config of this version ({error}); only that "
            "network can be exported."
        ) from error


def _write_weights(
    folder: Path,
    format_: str,
    table: Sequence[names.Tensor],
    params: dict[str, np.ndarray],
    dtype: str,
    written: Callable[[int], Any],
) -> None:
    stored = {t.limba: t.torch if format_ == "safetensors" else t.flax for t in table}
    limba_names = {s.name: limba_name for limba_name, s in stored.items()}

    def load(name: str) -> np.ndarray:
        limba_name = limba_names[name]
        array = params[limba_name].astype(dtype)
        if not np.isfinite(array.astype(np.float32, copy=False)).all():
            raise ValueError(
                f"The checkpoint's {limba_name} holds NaN or infinite values; export an earlier checkpoint."
            )
        written(array.nbytes)
        return stored[limba_name].orient(array)

    if format_ == "safetensors":
        shapes = {s.name: s.shape for s in stored.values()}
        hf_weights.write_safetensors(folder / FORMATS[format_], shapes, dtype, load)
    else:
        hf_weights.write_flax(folder / FORMATS[format_], list(limba_names), load)


def _previous_report(out: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    """The report of a previous run of this very request at `out`; None if there is nothing at `out`.

    Raises:
      ValueError: if something else stands there.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    report_file = out / REPORT
    if not report_file.is_file():
        raise ValueError(f"{out} exists and is not an export of Limba's; choose another folder or give --overwrite.")
    report = json.loads(report_file.read_text("utf-8"))
    other = [key for key, value in request.items() if report.get(key) != value]
    if other:
        raise ValueError(
            f"{out} holds another export (other {', '.join(other)}); choose another folder or give --overwrite."
        )
    return report


def _fingerprint(*paths: Path) -> str:
    """Changes with any file's name, size or time: cheap, and the same as long as nobody touched the files."""
    digest = hashlib.sha256()
    for root in paths:
        for file in sorted(p for p in [root, *root.rglob("*")] if p.is_file()):
            status = file.stat()
            digest.update(f"{file.relative_to(root.parent)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _print_differences(report: dict[str, Any]) -> None:
    for what, difference in report["largest_logits_difference"].items():
        print(f"largest logits difference: {what}: {difference:.2e}")
    if not report["checked"]:
        print("The export was not checked (--no-check).")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
