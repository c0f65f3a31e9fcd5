"""What the files of a run held when it began: a file that was replaced under its old name makes another run."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from limba.files.local_paths import local_path
from limba.gin_config.hf_keys.run_arguments import RunArguments

_DATA = ("train_file", "validation_file", "test_file")
_MODEL = ("model_name_or_path", "config_name", "tokenizer_name")
_OF_MODEL = (".json", ".safetensors", ".bin", ".msgpack", ".model", ".txt", ".gin")
_BEGINS = "# Held when the run began: "
# A larger file is known by its size, its beginning and its end.
_WHOLE, _PART = 1 << 26, 1 << 20


def comment(arguments: RunArguments) -> str:
    """Lines for run.gin, one for each key that names files of this machine."""
    lines = []
    for name in (*_DATA, *_MODEL):
        value = getattr(arguments, name)
        files = list(_files(value, name in _MODEL)) if isinstance(value, str) else []
        if files:
            size = sum(file.stat().st_size for file in files)
            lines.append(f"{_BEGINS}{name}, {size:,} bytes, sha256 {_digest(files)}\n")
    return "".join(["\n", *lines]) if lines else ""


def is_comment(line: str) -> bool:
    return line.startswith(_BEGINS)


def _files(value: str, is_model: bool) -> Iterator[Path]:
    path = local_path(value)
    if path.is_dir():
        names = sorted(path.iterdir()) if is_model else sorted(path.rglob("*"))
        yield from (x for x in names if x.is_file() and (not is_model or x.suffix in _OF_MODEL))
    elif path.is_file():
        yield path
    elif "://" not in value:
        matching = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
        yield from sorted(file for file in matching if file.is_file())


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            if size <= _WHOLE:
                digest.update(file.read())
            else:
                digest.update(file.read(_PART))
                file.seek(-_PART, 2)
                digest.update(file.read())
    return digest.hexdigest()[:16]
