"""T5X's `t5x/train.py`, by Limba: for a launcher's `python3 ${T5X_DIR}/t5x/train.py …`, with T5X_DIR=LIMBA/launch."""

import pathlib
import sys

# Python puts the folder of a script first, which has nothing to import.
sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])

from limba import command_line  # noqa: E402

# T5X's gin files bind `train` of the script that runs: `import __main__ as train_script`.
from limba.train import main, train  # noqa: E402

__all__ = ["train"]

command_line.run_command(main)
