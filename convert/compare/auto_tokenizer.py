"""Does `AutoTokenizer.from_pretrained(FOLDER)` load a folder's tokenizer? Asked in a process of its own.

python -m convert.compare.auto_tokenizer FOLDER    (prints the name of the class)
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from convert.compare import transformers_library
from convert.compare.comparison_rows import Comparison

# Tokenizers need no network of any library, whose import takes longer than they do, and a folder needs no hub.
_ALONE = {"USE_TORCH": "0", "USE_FLAX": "0", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def check(folder: Path) -> Iterator[Comparison]:
    """The row of a folder's tokenizer, with transformers' defaults; none if transformers is not installed.

    Raises:
      ValueError: if it is not loaded, with transformers' reason.
    """
    version = transformers_library.version()
    if version is None:
        return
    environment = os.environ | _ALONE | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "convert.compare.auto_tokenizer", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ValueError(
            f"AutoTokenizer.from_pretrained of transformers {version} does not load the exported tokenizer: "
            f"{reason.rstrip('.')}. No export was kept; the checkpoint is. `limba convert to-hf CHECKPOINT OUT "
            "--no-check` writes it anyway; --vocab FILE gives another tokenizer."
        )
    yield Comparison("tokenizers not loaded", 0, 0, f"{done.stdout.strip()}, AutoTokenizer of transformers {version}")


def main(folder: str) -> None:
    """Runs in the new process."""
    tokenizer = transformers_library.load().AutoTokenizer.from_pretrained(folder)
    print(type(tokenizer).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
