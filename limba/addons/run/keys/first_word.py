"""The first word of `limba run`: the name of a script, or a file with keys; and what else users give in their place."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from limba.addons.run.keys import script_names

# Names less alike than that are no misspellings of each other.
_NEAR = 0.85
# A call that makes the arguments, not the class.
_ARGUMENTS = re.compile(rb"TrainingArguments\(\s*(?:\w+\s*=[^=]|[\"'])")
# What the files begin with in which PyTorch and Python keep objects, and their endings.
_OF_OBJECTS = (b"PK\x03\x04", b"\x80")
_ENDINGS = (".bin", ".pt", ".pth", ".pkl")
_BYTES = 1 << 20
_AS_JSON = "open('args.json', 'w').write(args.to_json_string())"


def check(word: str, rest: Sequence[str]) -> None:
    """Raises FileNotFoundError or ValueError for a first word that is neither a script nor a file of keys.

    A script of the user's own is none of these: the keys behind it, `rest`, say what is learned.
    """
    path = Path(word).expanduser()
    if path.suffix == ".py" and path.is_file() and not script_names.is_known(word):
        with path.open("rb") as file:
            has_arguments = _ARGUMENTS.search(file.read(_BYTES))
        if has_arguments or not rest:
            raise ValueError(
                f"{word} is a file of Python, and arguments in such a file are not read. Write them as JSON there, "
                f"{_AS_JSON}, and give args.json in its place."
            )
    if path.suffix in _ENDINGS and path.is_file() and _begins_as_objects(path):
        raise ValueError(
            f"{word} keeps objects of Python, which are not read. Write its arguments as JSON: "
            f"import torch; args = torch.load({word!r}, weights_only=False); {_AS_JSON}. Then give args.json in its "
            "place."
        )
    if not path.exists() and not script_names.is_known(word) and path.suffix in ("", ".py"):
        near = difflib.get_close_matches(path.stem, script_names.NAMES, n=1, cutoff=_NEAR)
        if near:
            raise FileNotFoundError(f"There is no script and no file {word}. Did you mean {near[0]}{path.suffix}?")


def _begins_as_objects(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4).startswith(_OF_OBJECTS)
