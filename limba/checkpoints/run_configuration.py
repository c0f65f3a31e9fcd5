"""The configuration that a run's checkpoint carries, for commands that are given `--run_dir` in place of gin files."""

import argparse
from collections.abc import Sequence

from limba import checkpoints, distributed, gin_utils, storage


def newest_checkpoint(run_dir: str) -> str:
    """The checkpoint that a command means by a run's directory, as worker 0 sees it.

    Raises:
      FileNotFoundError: if there is none.
    """
    return distributed.from_first("checkpoint", lambda: str(checkpoints.find_checkpoint(run_dir)))


def parse(flags: argparse.Namespace, gin_file: str, bindings: Sequence[str] = ()) -> None:
    """Parses what a run was, then a command's gin file and bindings, then what the flags have.

    The vocabulary is the checkpoint's own file: where the run had its may not be on this machine.

    Args:
      flags: with `run_dir`, a run's directory or one of its checkpoints; None leaves it to `--gin_file`.
      gin_file: of the command, such as "gin/runs/infer_text.gin".
      bindings: of the command.
    """
    files, given = list(flags.gin_file), list(bindings)
    if flags.run_dir:
        checkpoint = storage.as_path(newest_checkpoint(flags.run_dir))
        files = [str(checkpoint / "run" / "config.gin"), gin_file, *files]
        vocabulary = checkpoint / "run" / "spiece.model"
        if storage.is_file(vocabulary):
            # What a run has recorded is in the scope of its macro, which comes before a binding without one.
            file = f"seqio.SentencePieceVocabulary.sentencepiece_model_file = {str(vocabulary)!r}"
            given += [f"VOCABULARY/{file}", file]
    gin_utils.parse_gin_flags(files, [*given, *flags.gin_bindings], flags.gin_search_paths)
