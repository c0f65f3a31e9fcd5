"""A process of a check as a command that `tests.forked` runs: fixture `checks_in_forks`."""

import importlib
import sys
import traceback
from collections.abc import Sequence


def main(argv: Sequence[str]) -> None:
    """Runs `main` of a module, which is named first, with the other arguments."""
    try:
        importlib.import_module(argv[0]).main(*argv[1:])
    except Exception:  # ends as Python does
        traceback.print_exc()
        sys.exit(1)
