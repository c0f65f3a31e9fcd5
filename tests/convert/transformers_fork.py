"""`convert.compare.transformers_process` as a command that `tests.forked` runs: fixture `checks_in_forks`."""

import sys
import traceback
from collections.abc import Sequence

from convert.compare import transformers_process


def main(argv: Sequence[str]) -> None:
    try:
        transformers_process.main(*argv)
    except Exception:  # ends as Python does
        traceback.print_exc()
        sys.exit(1)
