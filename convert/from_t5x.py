"""From a T5X checkpoint to one that every command of Limba takes: `run/` has its network, gin file and vocabulary.

    python -m convert from-t5x t5x_runs/base/checkpoint_1000000 runs/base --vocab spiece.model
    python -m convert to-hf runs/base exports/base

Training, evaluation and inference need no conversion: they read T5X's directories, with gin files that say the network.
`to-hf` reads them too.
"""

import argparse
import sys
from pathlib import Path

from limba.checkpoint_files import state_checksums
from limba.convert.model_files import any_format, lora_merge
from limba.convert.model_files.model import NO_HINTS, ModelHints
from limba.convert.t5x import limba_run
from limba.convert.t5x.t5x_checkpoint import without_optimizer
from limba.files.local_paths import local_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="a checkpoint of T5X, or a model_dir for its newest one")
    parser.add_argument("out", help="the run's directory to write checkpoint_<step> into")
    parser.add_argument("--no-optimizer", action="store_true", help="leave the optimizer's state out")
    limba_run.add_options(parser, "as it is")


def run(args: argparse.Namespace) -> None:
    from_t5x(args.checkpoint, args.out, with_optimizer=not args.no_optimizer, **limba_run.options(args))


def from_t5x(
    checkpoint: str | Path,
    out: str | Path,
    *,
    hints: ModelHints = NO_HINTS,
    network: str | None = None,
    with_optimizer: bool = True,
    verify: bool = True,
    overwrite: bool = False,
) -> Path:
    """Converts and returns the checkpoint written; see `convert.t5x.limba_run.write_run`.

    Raises:
      FileNotFoundError: if there is no checkpoint or no SentencePiece model.
      ValueError: if the checkpoint is damaged, not finite, or not of an encoder and decoder; or OUT has one already.
    """
    model = any_format.open_checkpoint(checkpoint, hints)
    for warning in model.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    tensors = lora_merge.merged(state_checksums.open_tensors(model.path), model.path)
    if not with_optimizer:
        tensors = without_optimizer(tensors)
    path = limba_run.write_run(model, tensors, network, local_path(out), verify, overwrite)
    print(f"{model.path} is converted to {path} ({model.family.name}, {model.num_parameters:,} parameters).")
    return path
