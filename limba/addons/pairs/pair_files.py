"""The files that `--pairs` names: files, patterns, and whole folders as BLiMP and MultiBLiMP are published."""

import glob
from collections.abc import Sequence
from pathlib import Path

_TABLES = (".jsonl", ".csv", ".tsv", ".json", ".parquet")
_PACKED = (".gz", ".bz2", ".xz", ".zst")


def find(given: Sequence[str], flag: str = "--pairs") -> list[str]:
    """Each file once, in the order of the names; those of a folder and of a pattern are sorted.

    A folder is searched with its folders, for tables by the ends of their names (.jsonl, .tsv, .parquet …, also
    packed); hidden files are passed over. Files in buckets and behind URLs stay as they are.

    Raises:
      FileNotFoundError: for a name, a pattern or a folder without a file.
    """
    return list(dict.fromkeys(file for name in given for file in _files(name, flag)))


def _files(name: str, flag: str) -> list[str]:
    if "://" in name:
        return [name]
    path = Path(name).expanduser()
    if path.is_file():
        return [name]
    if path.is_dir():
        inside = sorted(x for x in path.rglob("*") if x.is_file() and _is_table(x.relative_to(path)))
        if not inside:
            raise FileNotFoundError(
                f"{flag} {name} is a folder without a table ({', '.join(_TABLES)}); give the folder with the "
                "files, such as BLiMP's data."
            )
        return list(map(str, inside))
    # Path.glob takes no absolute patterns.
    found = sorted(x for x in glob.glob(str(path), recursive=True) if Path(x).is_file())  # noqa: PTH207
    if not found:
        problem = "matches no file" if glob.has_magic(name) else "does not exist"
        raise FileNotFoundError(f"{flag} {name} {problem}; give files or a folder with tables.")
    return found


def _is_table(inside: Path) -> bool:
    if any(part.startswith(".") for part in inside.parts):
        return False
    name = inside.with_suffix("") if inside.suffix in _PACKED else inside
    return name.suffix in _TABLES
