"""`limba embed`: vectors of texts from the encoder of a checkpoint, T5's or BERT's.

    limba embed runs/my_bert --input_file sentences.txt --output_file vectors.npy
    limba embed runs/my_t5 --input "A sentence." --pooling none --output_file tokens.npz

A .npy file is float32 [lines, width]. With `--pooling none` a line has a vector for each token, and the .npz file has
`vectors` [all tokens, width] and `lengths` [lines], the tokens of each line in order. They are what transformers'
T5EncoderModel and BertModel give for an export, as `last_hidden_state`.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from limba import command_line
from limba.checkpoints import checkpointing, run_configuration
from limba.files import written_files
from limba.files.local_paths import local_path
from limba.gin_config import gin_files
from limba.inference import embedding, input_files
from limba.inference.embedding import Embedder

_ENDINGS = {True: ".npy", False: ".npz"}


def embed(
    *,
    embedder_cls: Callable[..., Embedder],
    restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
    inputs: Sequence[str],
    output_file: Path,
    pooling: str | None = None,
    normalize: bool | None = None,
    name_line: Callable[[int], str] = "line {}".format,
) -> None:
    """Writes the vectors of lines of text; the file is there when it is whole.

    Args:
      embedder_cls: called with the checkpoint and these: `limba.inference.embedding.Embedder`.
      output_file: .npy, or .npz for pooling "none".
      pooling, normalize: see `Embedder`.
      name_line: the name of a line for messages, by its number from 1.
    """
    embedder = embedder_cls(restore_checkpoint_cfg=restore_checkpoint_cfg, pooling=pooling, normalize=normalize)
    embedder.name_line = name_line
    rows = embedder.embed(inputs)
    if jax.process_index() != 0:
        return
    output_file.parent.mkdir(parents=True, exist_ok=True)
    with written_files.writing(output_file) as temporary, temporary.open("wb") as file:
        if pooling == "none":
            np.savez(file, vectors=np.concatenate(rows), lengths=np.array([len(row) for row in rows], np.int64))
        else:
            np.save(file, np.stack(rows))
    messages = written_files.messages_beside(output_file)
    print(f"{len(rows)} lines of {rows[0].shape[-1]} numbers in {output_file}", file=messages)
    if embedder.num_cut:
        cut = f"{embedder.num_cut} of {len(rows)} lines were longer than Embedder.max_inputs_length, and cut."
        print(f"warning: {cut}", file=messages)
    if unknown := embedder.find_unknown(inputs):
        print(f"warning: {unknown}", file=messages)


def main(argv: Sequence[str]) -> int:
    """Parses flags and the run's gin, and embeds."""
    parser = command_line.argument_parser("embed", __doc__ or "", takes_run=True)
    parser.add_argument("--input", action="append", default=[], metavar="TEXT", help="a text; repeatable")
    parser.add_argument("--input_file", metavar="FILE", help="one text a line, or a table; - reads standard input")
    column = "of a table (csv, JSON, Parquet), with the texts (text)"
    parser.add_argument("--text_column", metavar="NAME", help=column)
    parser.add_argument("--output_file", metavar="FILE", help=".npy; .npz with --pooling none; - for standard output")
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --output_file")
    parser.add_argument(
        "--pooling", help=f"of the tokens' vectors: {', '.join(embedding.POOLINGS)} (as trained, else mean)"
    )
    unit = "divide each vector by its length (as trained, else not)"
    parser.add_argument("--normalize", action=argparse.BooleanOptionalAction, help=unit)
    flags = command_line.parse_flags(parser, argv)
    if not flags.run_dir and not flags.gin_file:
        parser.error("give RUN, or gin files: a model, and gin/runs/embed.gin")
    if flags.pooling is not None and flags.pooling not in embedding.POOLINGS:
        parser.error(f"--pooling {flags.pooling}: use one of {', '.join(embedding.POOLINGS)}")
    if not flags.output_file:
        parser.error("give --output_file FILE: a vector has hundreds of numbers")
    output_file = local_path(written_files.named_by_flag(flags.output_file))
    ending = _ENDINGS[flags.pooling != "none"]
    if output_file.suffix != ending and not written_files.is_stream(output_file):
        parser.error(
            f"--output_file {flags.output_file}: with --pooling {flags.pooling or 'mean'} its name ends in {ending}"
        )
    if output_file.is_dir():
        parser.error(f"--output_file {flags.output_file} is a folder; name a file")
    written_files.refuse_existing(output_file, "--output_file", flags.overwrite)
    of_texts = flags.text_column or ("text" if input_files.is_table(flags.input_file or "-") else None)
    try:
        inputs = flags.input + input_files.read_texts(flags.input_file, of_texts)
    except ValueError as error:
        from limba.tasks.sources.damaged_files.missing_columns import MissingColumnError

        if flags.text_column is not None or not isinstance(error, MissingColumnError):
            raise
        raise ValueError(f"{error} Say which column has the texts: --text_column NAME.") from error
    if not inputs:
        parser.error("nothing to embed: give --input TEXT, or --input_file FILE with one text a line")
    bindings = {"CHECKPOINT_PATH": run_configuration.newest_checkpoint(flags.run_dir)} if flags.run_dir else {}
    run_configuration.parse(flags, "gin/runs/embed.gin", bindings, needs_tasks=False)
    gin_files.require_bindings(CHECKPOINT_PATH="\"'runs/my_run'\"")
    configured = gin_files.configurable(embed, module="limba.addons.vectors.embed")
    given: dict[str, Any] = {"inputs": inputs, "output_file": output_file, "pooling": flags.pooling}
    given["normalize"] = flags.normalize
    given["name_line"] = input_files.line_names(flags.input, flags.input_file)
    if command_line.goes_on(flags):
        configured(**given)
    return 0


if __name__ == "__main__":
    from limba.addons.vectors import embed as _this

    command_line.run_command(_this.main)
