"""The configuration that a run's checkpoint carries, for commands that are given `--run_dir` in place of gin files."""

import argparse
from collections.abc import Mapping
from typing import Any

from limba.checkpoint_files import run_folder
from limba.checkpoints import checkpointing
from limba.files import storage
from limba.files.storage import AnyPath
from limba.gin_config import gin_files, import_errors, recipe
from limba.workers import distributed


def newest_checkpoint(run_dir: str) -> str:
    """The newest checkpoint of a run's directory, as worker 0 sees it; of a checkpoint, itself.

    Raises:
      FileNotFoundError: if there is none.
    """
    return distributed.from_first("checkpoint", lambda: str(checkpointing.find_checkpoint(run_dir)))


def remember_modules(checkpoint: AnyPath) -> None:
    """Keeps where the run's modules were, for the message if one is missing here."""
    if run_folder.has_run_info(checkpoint):
        import_errors.remember(run_folder.load_run_info(checkpoint).get("modules", {}))


def parse(flags: argparse.Namespace, gin_file: str, bindings: Mapping[str, Any], needs_tasks: bool = True) -> None:
    """Parses the gin of a run, then a command's gin file and bindings, then those of the flags.

    The vocabulary is the checkpoint's copy: the file that the run used may not be on this machine.

    Args:
      flags: with `run_dir`, a run's directory or one of its checkpoints; None leaves it to `--gin_file`.
      gin_file, bindings: of the command, such as "gin/runs/infer_text.gin".
      needs_tasks: False leaves out the modules that the run imported for its tasks, which may not be on this machine.
    """
    files, given, without_tasks = list(flags.gin_file), dict(bindings), ""
    if flags.run_dir:
        checkpoint = storage.as_path(newest_checkpoint(flags.run_dir))
        gin = checkpoint / run_folder.FOLDER / run_folder.GIN
        remember_modules(checkpoint)
        files = [str(gin), gin_file, *files]
        without_tasks = "" if needs_tasks else str(gin)
        if vocabulary := run_folder.find_vocabulary(checkpoint):
            # A run records its vocabulary in the scope of the macro, which wins over a binding without a scope.
            name = _parameter_of(vocabulary, gin)
            given |= {f"VOCABULARY/{name}": str(vocabulary), name: str(vocabulary)}
    lines = [*recipe.lines(given), *flags.gin_bindings]
    gin_files.parse_gin_flags(files, lines, flags.gin_search_paths, without_tasks)


def _parameter_of(vocabulary: AnyPath, gin: AnyPath) -> str:
    """The name in gin of the file of a vocabulary."""
    content = storage.read_bytes(gin).decode()
    if vocabulary.name == run_folder.TOKENIZER:
        kind = run_folder.T5_TOKENIZERS if run_folder.T5_TOKENIZERS in content else run_folder.TOKENIZERS
        return f"vocabularies.{kind}.tokenizer_file"
    library = "vocabularies" if "vocabularies.SentencePiece" in content else "seqio"
    return f"{library}.SentencePieceVocabulary.sentencepiece_model_file"
