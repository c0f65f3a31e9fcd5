"""`limba COMMAND` that writes down what it imported, run by `tests.forked` for test_without_tensorflow.py."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

NAMES = ("tensorflow", "tensorflow_text", "seqio", "torch", "datasets", "pandas")


def record(arguments: Sequence[str]) -> None:
    heavy = [name for name in NAMES if name in sys.modules]
    with Path(os.environ["IMPORTED"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"argv": list(arguments), "heavy": heavy}) + "\n")


def main(argv: Sequence[str]) -> None:
    from limba import cli

    record([])  # what the process that forks has imported is here, too
    sys.argv = ["limba", *argv]
    try:
        cli.main()
    finally:
        record(argv)
