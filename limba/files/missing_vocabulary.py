"""The command that builds a vocabulary file that is not there."""

from pathlib import PurePath

from limba.files.shell_words import quoted

_TOKENIZER = "tokenizer.json"


def build_command(file: str) -> str:
    """The command, for messages. A tokenizer has a fixed name, so another .json becomes one in the same folder."""
    path = PurePath(file)
    if path.suffix != ".json":
        return f"limba vocab build --data_files … --out {quoted(file)}"
    kind = "bpe" if "bpe" in path.stem.lower() else "wordpiece"
    out = quoted(file if path.name == _TOKENIZER else str(path.with_name(_TOKENIZER)))
    return f"limba vocab build --kind {kind} --data_files … --out {out}"
