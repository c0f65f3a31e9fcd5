"""The names of the columns of files, where a task finds its own by them."""

import glob
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from limba.files.local_paths import local_path
from limba.files.untrusted_files import shown, some
from limba.tasks.sources import corpora
from limba.tasks.sources.damaged_files import missing_columns


def of_data(data_files: Mapping[str, corpora.DataFiles] | Any) -> tuple[str, list[str]]:
    """The first local file and the names of its columns; none of a source, or if no file is there yet."""
    if corpora.is_source(data_files):
        return "", []
    patterns = [pattern for files in corpora.files_by_split(data_files).values() for pattern in files]
    local = [str(local_path(pattern)) for pattern in patterns if "://" not in pattern]
    found = [file for pattern in local for file in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207, also absolute
    return (found[0], of_file(found[0])) if found else ("", [])


def of_file(file: str) -> list[str]:
    """The names of a file's columns; raises ValueError for a csv that another mark separates."""
    names = list(corpora.HuggingFaceSource({"pairs": file}, ["text"]).column_names("pairs"))
    if ".csv" in pathlib.PurePath(file).suffixes and (mark := missing_columns.other_delimiter(names)) is not None:
        tabs = "rename it to .tsv" if mark == "\t" else "with tabs as .tsv"
        raise ValueError(
            f"{file}: its header {shown(names[0])} is separated by {mark!r}. Save it with commas, or {tabs}."
        )
    return names


def known_pair(names: Sequence[str], known: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """The first of the known pairs of names that a file has."""
    return next((pair for pair in known if {*pair} <= {*names}), None)


def without_known(file: str, names: Sequence[str], known: Sequence[tuple[str, str]]) -> str:
    """The message for a file with none of the known pairs of names; the remedy is the caller's."""
    pairs = ", ".join(f"{a} and {b}" for a, b in known)
    return f"{described(file, names)}, and none of the known pairs of names ({pairs})."


def described(file: str, names: Sequence[str]) -> str:
    """For messages."""
    return f"{file} has the columns {some([*map(shown, names)], 20)}"
