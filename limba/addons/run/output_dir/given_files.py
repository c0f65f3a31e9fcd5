"""What the files of a run held when it began: a file that was replaced under its old name makes another run."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from limba.addons.run.keys.request import Request
from limba.files.local_paths import local_path

_DATA = ("train_file", "validation_file", "test_file")
_MODEL = ("model_name_or_path", "config_name", "tokenizer_name")
_OF_NETWORK = (".json", ".model", ".txt", ".gin")
_OF_MODEL = (*_OF_NETWORK, ".safetensors", ".bin", ".msgpack")
# What a run leaves in OUTPUT_DIR beside the model, which may be where the model was.
OF_RUNS = (
    *("run.gin", "run.json", "*_results.json", "trainer_state.json", "generated_predictions.txt"),
    *("predict_results*.txt", "predictions.txt", "README.md", "conversion_report.json", "loss.png"),
)
_BEGINS = "# Held when the run began: "
# A larger file is known by its size, its beginning and its end.
_WHOLE, _PART = 1 << 26, 1 << 20


def comment(request: Request) -> str:
    """Lines for run.gin, one for each key that names files of this machine."""
    lines = []
    for name in (*_DATA, *_MODEL):
        value = getattr(request, name)
        kinds = _OF_MODEL if name == "model_name_or_path" else _OF_NETWORK
        files = list(_files(value, kinds if name in _MODEL else ())) if isinstance(value, str) else []
        if files:
            size = sum(file.stat().st_size for file in files)
            lines.append(f"{_BEGINS}{name}, {size:,} bytes, sha256 {_digest(files)}\n")
    return "".join(["\n", *lines]) if lines else ""


def is_comment(line: str) -> bool:
    return line.startswith(_BEGINS)


def _files(value: str, of_model: tuple[str, ...]) -> Iterator[Path]:
    path = local_path(value)
    if path.is_dir():
        names = sorted(path.iterdir()) if of_model else sorted(path.rglob("*"))
        yield from (x for x in names if x.is_file() and (not of_model or _is_of_model(x, of_model)))
    elif path.is_file():
        yield path
    elif "://" not in value:
        matching = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
        yield from sorted(file for file in matching if file.is_file())


def _is_of_model(path: Path, kinds: tuple[str, ...]) -> bool:
    return path.suffix in kinds and not any(path.match(pattern) for pattern in OF_RUNS)


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
