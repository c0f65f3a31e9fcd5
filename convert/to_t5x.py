"""From a Limba checkpoint to one that T5X resumes from, in either of its formats.

    python -m convert to-t5x runs/quickstart exports/quickstart_t5x --format classic

T5X restores Limba's own directories too; this is for its classic format, and for the layout of its scalable_t5. The
checkpoint's `run/`, which T5X passes over, says what the tensors do not: activations, family, vocabulary.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.checkpoint_files import run_folder
from limba.checkpoint_files.small_files import write_files
from limba.convert.compare import comparison
from limba.convert.model_files import any_format, t5_files
from limba.convert.model_files.model import Model
from limba.convert.t5x import limba_run, t5x_state
from limba.convert.t5x.t5x_checkpoint import NETWORKS, Compare, open_source, write_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="a checkpoint, or a run's directory for its newest one")
    parser.add_argument("out", help="the directory to write checkpoint_<step> into, T5X's MODEL_DIR")
    parser.add_argument("--format", choices=t5x_state.FORMATS, default="orbax", help="T5X's train.use_orbax (orbax)")
    parser.add_argument("--network", choices=NETWORKS, help="of T5X, whose layout the layers get (as it is)")
    dtypes = ("float32", "bfloat16")
    parser.add_argument("--dtype", choices=dtypes, default="float32", help="of the parameters (float32)")
    parser.add_argument("--no-optimizer", action="store_true", help="leave the optimizer's state out")
    parser.add_argument("--no-check", action="store_true", help="write without reading back and comparing")
    parser.add_argument("--overwrite", action="store_true", help="replace a checkpoint that is there")


def run(args: argparse.Namespace) -> None:
    to_t5x(
        args.checkpoint,
        args.out,
        format_=args.format,
        network=args.network,
        dtype=args.dtype,
        with_optimizer=not args.no_optimizer,
        verify=not args.no_check,
        overwrite=args.overwrite,
    )


def to_t5x(
    checkpoint: str | Path,
    out: str | Path,
    *,
    format_: str = "orbax",
    network: str | None = None,
    dtype: str = "float32",
    with_optimizer: bool = True,
    verify: bool = True,
    overwrite: bool = False,
) -> Path:
    """Converts and returns the checkpoint written; see `convert.t5x.t5x_checkpoint`.

    Raises:
      FileNotFoundError: if there is no checkpoint.
      ValueError: if it is damaged, not finite, or OUT has one already.
    """
    source = open_source(checkpoint, network, with_optimizer)
    compare: Compare | None = None
    record: dict[str, bytes] = {}
    if t5_files.is_encoder_decoder(source.tensors):
        model = any_format.open_checkpoint(source.path)
        if not model.config.is_in_t5x:
            raise ValueError(
                f"{source.path} is {model.family.title}, and T5X has no such network. `limba convert to-hf` exports it."
            )
        if start := model.config.decoder_start_token_id:
            raise ValueError(
                f"The decoder of {source.path} begins with {start} (decoder_start_token_id), and T5X's always begins "
                "with 0. It trains, evaluates and exports in Limba."
            )
        if model.config.scale_attn_logits:
            own = "T5X's own network does not divide queries by sqrt(head_dim) (scale_attn_logits); NVIDIA's does."
            print(f"warning: {own} Train the checkpoint in that.", file=sys.stderr)
        for warning in model.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        compare = comparison.with_source(model)
        record = limba_run.files_of_run(model, source, *_vocabulary(model)).of_checkpoint(source)

    def add_files(folder: Path) -> None:
        if record:
            write_files(folder / run_folder.FOLDER, record)

    digest = hashlib.sha256(repr(sorted(record.items())).encode()).hexdigest()
    path = write_checkpoint(source, out, format_, dtype, compare, verify, overwrite, add_files, digest)
    print(f"{source.path} is converted to {path} (T5X, {format_}, {dtype}, {len(source.tensors)} tensors).")
    return path


def _vocabulary(model: Model) -> tuple[Mapping[str, Any], bytes | None]:
    """The record of the vocabulary, empty if it is not known, and the content of its file, if it is on this machine."""
    vocabulary = model.vocabulary or {}
    file = run_folder.vocabulary_file(vocabulary)
    return vocabulary, Path(file).read_bytes() if file and Path(file).is_file() else None
