"""From a Limba checkpoint to one that T5X resumes from, in either of its formats.

    python -m convert to-t5x runs/quickstart exports/quickstart_t5x --format classic

T5X restores Limba's own directories too; this is for its classic format, and for the layout of its scalable_t5.
"""

import argparse
from pathlib import Path

from convert.compare import comparison
from convert.model_files import any_format
from convert.t5x import t5x_state
from convert.t5x.t5x_checkpoint import NETWORKS, open_source, write_checkpoint


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
    compare = None
    if any_format.is_encoder_decoder(source.tensors):
        model = any_format.open_checkpoint(source.path)
        if start := model.config.decoder_start_token_id:
            raise ValueError(
                f"The decoder of {source.path} begins with {start} (decoder_start_token_id), and T5X's always begins "
                "with 0. It trains, evaluates and exports in Limba."
            )
        compare = comparison.with_source(model)
    path = write_checkpoint(source, out, format_, dtype, compare, verify, overwrite)
    print(f"{source.path} is converted to {path} (T5X, {format_}, {dtype}, {len(source.tensors)} tensors).")
    return path
