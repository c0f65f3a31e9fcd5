"""What `AutoTokenizer.from_pretrained(FOLDER)` makes of a folder's tokenizer.

It is asked in a process of its own, with transformers' code alone: a mistake of our readers shows beside it.

python -m convert.compare.auto_tokenizer FOLDER TEXTS    (texts as JSON; prints a JSON object)
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from limba.convert.compare import transformers_library
from limba.convert.compare.comparison_rows import Comparison
from limba.files import json_text, python_path

# Tokenizers need no network of any library, whose import takes longer than they do, and a folder needs no hub.
_ALONE = {"USE_TORCH": "0", "USE_FLAX": "0", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
# Tokens of a row that is cut; more than the special tokens of any.
MOST = 6
_ROLES = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")


@dataclasses.dataclass(frozen=True)
class Found:
    """A folder's tokenizer in transformers.

    Attributes:
      class_name: its class.
      special_ids: ids by role, of those that it has.
      rows: ids of the texts, with the special tokens around them.
      cut_rows: the same of at most `MOST` tokens.
    """

    class_name: str
    special_ids: dict[str, int]
    rows: list[list[int]]
    cut_rows: list[list[int]]


def read(folder: Path, texts: Sequence[Sequence[str]] = ()) -> Found:
    """The tokenizer that transformers, which is installed, makes of a folder; a text may have a second one beside it.

    Raises:
      ValueError: if it makes none, with transformers' reason.
    """
    environment = python_path.with_path(_ALONE)
    asked = json_text.dumps([[*text] for text in texts])
    command = [sys.executable, "-m", "limba.convert.compare.auto_tokenizer", str(folder), asked]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].rstrip("."))
    return Found(**json.loads(done.stdout.splitlines()[-1]))


def check(folder: Path, texts: Sequence[Sequence[str]] = ()) -> Found | None:
    """An exported tokenizer, with transformers' defaults; None if transformers is not installed.

    Raises:
      ValueError: if it is not loaded, with transformers' reason.
    """
    version = transformers_library.version()
    if version is None:
        return None
    try:
        return read(folder, texts)
    except ValueError as error:
        raise ValueError(
            f"AutoTokenizer.from_pretrained of transformers {version} does not load the exported tokenizer: "
            f"{error}. No export was kept; the checkpoint is. `limba convert to-hf CHECKPOINT OUT "
            "--no-check` writes it anyway; --vocab FILE gives another tokenizer."
        ) from error


def row(found: Found | None) -> list[Comparison]:
    """The row of what `check` returns; none if transformers is not installed."""
    if found is None:
        return []
    note = f"{found.class_name}, AutoTokenizer of transformers {transformers_library.version()}"
    return [Comparison("tokenizers not loaded", 0, 0, note)]


def main(folder: str, texts: str) -> None:
    """Runs in the new process."""
    transformers_library.check_named_files(Path(folder))
    tokenizer = transformers_library.load().AutoTokenizer.from_pretrained(folder, **transformers_library.NO_CODE)
    ids = {role: getattr(tokenizer, f"{role}_token_id", None) for role in _ROLES}
    special_ids = {role: id_ for role, id_ in ids.items() if id_ is not None}
    given = json.loads(texts)
    rows = [tokenizer(*text).input_ids for text in given]
    cut = [tokenizer(*text, truncation=True, max_length=MOST).input_ids for text in given]
    print(json_text.dumps(dataclasses.asdict(Found(type(tokenizer).__name__, special_ids, rows, cut))))


if __name__ == "__main__":
    main(*sys.argv[1:])
