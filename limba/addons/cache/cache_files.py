"""The files of a cache, which may come from somebody else: what they say is compared with what `limba cache` writes.

So a file that is none of its own, and one that stands for more than it holds, is an error before anything is read.
"""

import tokenize
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from limba.files import untrusted_files, untrusted_json
from limba.files.number_ranges import AT_LEAST_1

_FEATURES = ("inputs", "targets", "tokens")
_DTYPES = ("uint16", "int32")
# Of `np.save`, for a list of numbers: 128 bytes, padded with blanks.
_MOST_OF_HEADER = 256
_SIZE = AT_LEAST_1._replace(least=0, below=2**63)
_EXAMPLES = AT_LEAST_1._replace(below=2**48)
_TEXT = (lambda x: isinstance(x, str)), "a text"


def _is_id(value: object) -> bool:
    return untrusted_json.COUNT[0](value)


def _list_of(values: object, is_right: Callable[[object], bool]) -> bool:
    return isinstance(values, list) and all(map(is_right, values))


def _table_of(values: object, is_right: Callable[[object], bool]) -> bool:
    return isinstance(values, dict) and all(map(is_right, values.values()))


def _is_file(value: object) -> bool:
    keys = ("size", "time_ns", "crc32")
    return isinstance(value, dict) and all(_SIZE.has(value.get(key)) for key in keys)


def _is_feature(value: object) -> bool:
    if not isinstance(value, dict) or value.get("dtype") not in _DTYPES:
        return False
    return _SIZE.has(value.get("bytes")) and _is_id(value.get("longest"))


def _is_objective(value: object) -> bool:
    if not isinstance(value, dict):
        return value is None
    return isinstance(value.get("class"), str) and isinstance(value.get("arguments"), dict)


def _is_vocabulary(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    sentinels = value.get("sentinel_ids", [])
    numbers = {name: x for name, x in value.items() if name != "sentinel_ids"}
    return _table_of(numbers, _is_id) and _list_of(sentinels, _is_id)


_MANIFEST: untrusted_json.Values = {
    "task": _TEXT,
    "split": _TEXT,
    "lengths": ((lambda x: _table_of(x, _is_id)), "a table of whole numbers"),
    "objective": (_is_objective, "null, or a class with its arguments"),
    "mode": ((lambda x: _list_of(x, _is_id)), "a list of tokens"),
    "vocabulary": (_is_vocabulary, "a table of whole numbers"),
    "files": ((lambda x: _table_of(x, _is_file)), "a table with size, time_ns and crc32 of each file"),
    "fingerprint": ((lambda x: isinstance(x, dict) and isinstance(x.get("tasks", {}), dict)), "a table"),
    "features": ((lambda x: _table_of(x, _is_feature)), "a table with dtype, bytes and longest of each feature"),
    "num_examples": (_EXAMPLES.has, str(_EXAMPLES)),
}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a cache: all keys are there, and have values of their types.

    Raises:
      ValueError: if it is damaged, or none that `limba cache` wrote.
    """
    file = folder / "manifest.json"
    try:
        manifest = untrusted_json.read_object(file)
    except ValueError as error:
        raise ValueError(f"{error} Remove {folder} and make it again.") from error
    missing = [key for key in _MANIFEST if key not in manifest]
    wrong = f"it has no {missing[0]!r}" if missing else untrusted_json.wrong_value(manifest, _MANIFEST)
    if not wrong:
        names = ["tokens"] if manifest["objective"] else ["inputs", "targets"]
        if sorted(manifest["features"]) != names:
            known = [name for name in manifest["features"] if name in _FEATURES]
            others = [untrusted_files.cut(name) for name in manifest["features"] if name not in _FEATURES]
            found = untrusted_files.some(others or known or ["none"])
            wrong = f"its features are {found}; a cache of this kind has {', '.join(names)}"
    if wrong:
        raise ValueError(f"{file} is none that `limba cache` wrote: {wrong}. Remove {folder} and make it again.")
    return manifest


def open_feature(
    folder: Path, name: str, feature: Mapping[str, Any], num_examples: int, remedy: str
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of a feature, one example after another, and where each ends, int64 `[examples]`, memory-mapped.

    Args:
      feature: as the manifest has it.
      num_examples: of the manifest.
      remedy: ends the messages.

    Raises:
      ValueError: for a file that is not there, or that is not as large, or not such an array, as the manifest says.
    """
    path = folder / f"{name}.tokens"
    itemsize = np.dtype(feature["dtype"]).itemsize
    if not path.is_file() or path.stat().st_size != feature["bytes"] or feature["bytes"] % itemsize:
        raise ValueError(f"{path} is damaged or missing: it should have {feature['bytes']} bytes. {remedy}")
    if not feature["bytes"]:
        raise ValueError(f"{path} is empty. {remedy}")
    tokens = np.memmap(path, feature["dtype"], "r")
    if feature["longest"] > tokens.size:
        raise ValueError(f"{path} has no row of {feature['longest']} tokens. {remedy}")
    return tokens, _open_ends(folder / f"{name}.ends.npy", num_examples, remedy)


def _open_ends(path: Path, num_examples: int, remedy: str) -> np.ndarray:
    size = untrusted_files.check_is_file(path)
    try:
        with path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("it is of another version")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=_MOST_OF_HEADER)
            start = file.tell()
    except (ValueError, SyntaxError, tokenize.TokenError) as error:
        what = untrusted_files.cut(str(error).partition("\n")[0])
        raise ValueError(f"{path} is no array that `limba cache` wrote: {what}. {remedy}") from error
    if shape != (num_examples,) or dtype != np.int64 or size != start + 8 * num_examples:
        raise ValueError(f"{path} is damaged: it should have {num_examples} numbers of the type int64. {remedy}")
    return np.memmap(path, np.int64, "r", start, shape)
