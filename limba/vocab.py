"""`limba vocab`: SentencePiece vocabularies with T5's special tokens.

    limba vocab build --data_files 'corpus/train-*.jsonl' --vocab_size 32128 --out vocab/spiece.model
    limba vocab check vocab/spiece.model

`limba vocab COMMAND --help` says more.
"""

import argparse
import importlib
from collections.abc import Sequence

from limba import native_logs

# Command: (module with main(argv), what it does).
_COMMANDS = {
    "build": ("tasks.vocabularies", "train a SentencePiece model on a corpus"),
    "check": ("convert.check_vocabulary", "prove that all tokenizers of a model give the same ids"),
}


def main(argv: Sequence[str]) -> int:
    """Runs one command; returns the exit code."""
    listing = "\n".join(f"  {name:8} {what}" for name, (_, what) in _COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="limba vocab",
        usage="limba vocab COMMAND ...",
        description=__doc__,
        epilog=f"commands:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", metavar="COMMAND", choices=_COMMANDS, help=argparse.SUPPRESS)
    command = parser.parse_args(argv[:1]).command
    with native_logs.filtered():  # Building one brings TensorFlow in.
        module = importlib.import_module(_COMMANDS[command][0])
    return module.main(list(argv)) or 0
