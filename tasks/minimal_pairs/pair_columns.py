"""The columns of files with minimal pairs: BLiMP's, MultiBLiMP's, or others by name."""

import dataclasses
import glob
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from limba.files.local_paths import local_path
from tasks.sources import corpora
from tasks.sources.damaged_files import missing_columns
from tasks.supervised import supervised_tasks
from tasks.supervised.cell_texts import as_text

# Of BLiMP (arXiv:1912.00582) and of `limba pairs`; of MultiBLiMP (arXiv:2504.02768); of tables with plain names.
_KNOWN = (("sentence_good", "sentence_bad"), ("sen", "wrong_sen"), ("good", "bad"), ("right", "wrong"))
_PHENOMENA = ("phenomenon", "linguistics_term")


@dataclasses.dataclass(frozen=True)
class PairColumns:
    """The names of columns.

    Attributes:
      right, wrong: of the sentences.
      phenomenon: of the phenomenon, by which accuracies are grouped; None has no groups.
    """

    right: str = "sentence_good"
    wrong: str = "sentence_bad"
    phenomenon: str | None = "phenomenon"

    @property
    def names(self) -> list[str]:
        return [self.right, self.wrong, *([] if self.phenomenon is None else [self.phenomenon])]

    def read(self, row: Mapping[str, Any]) -> tuple[str, str, str]:
        """The right sentence, the wrong one and the phenomenon of a row.

        Raises:
          ValueError: for a sentence that is not text, or empty.
        """
        for name in (self.right, self.wrong):
            if not isinstance(row[name], str) or not row[name].strip():
                raise ValueError(f"column {name!r} has {row[name]!r} where a sentence is needed")
        phenomenon = "" if self.phenomenon is None else as_text(row[self.phenomenon])
        return row[self.right].strip(), row[self.wrong].strip(), phenomenon.strip()


def of_data(data_files: Mapping[str, corpora.DataFiles] | Any) -> PairColumns:
    """The columns of the first local file, if there is one yet, else `PairColumns()`.

    Raises:
      ValueError: if the file has no columns of a known format.
    """
    if corpora.is_source(data_files):
        return PairColumns()
    patterns = [pattern for files in corpora.files_by_split(data_files).values() for pattern in files]
    local = [str(local_path(pattern)) for pattern in patterns if "://" not in pattern]
    found = [file for pattern in local for file in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207, also absolute
    if not found or not (names := _names(found[0])):
        return PairColumns()
    if (known := _known(names)) is None:
        raise ValueError(
            f"{_without_known(found[0], names)} Name the columns with the right and the wrong sentences: "
            "columns=minimal_pairs.PairColumns('RIGHT', 'WRONG', phenomenon=None)."
        )
    return PairColumns(*known, _phenomenon(names))


def find(file: str, right: str | None, wrong: str | None, phenomenon: str | None) -> PairColumns:
    """The columns of a file: those that are named, else those of a known format.

    Raises:
      FileNotFoundError, BrokenFileError: if it is not there, or cannot be read.
      ValueError: if it is empty, or lacks a column.
    """
    names = _names(file)
    if not names:
        raise ValueError(f"{file} is empty; give a file with pairs of sentences.")
    there = _there(file, names)
    for flag, name in (("good", right), ("bad", wrong), ("phenomenon", phenomenon)):
        if name is not None and name not in names:
            raise ValueError(f"{there}, and no {name!r}, which --{flag}_column names.")
    known = _known(names) or (None, None)
    found = (right or known[0], wrong or known[1])
    if None in found:
        raise ValueError(
            f"{_without_known(file, names)} Name the columns with the right and the wrong sentences: --good_column "
            "NAME --bad_column NAME."
        )
    return PairColumns(str(found[0]), str(found[1]), phenomenon or _phenomenon(names))


def _names(file: str) -> list[str]:
    """The names of a file's columns; raises ValueError for a csv that another mark separates."""
    names = list(corpora.HuggingFaceSource({"pairs": file}, ["text"]).column_names("pairs"))
    if ".csv" in pathlib.PurePath(file).suffixes and (mark := missing_columns.other_delimiter(names)) is not None:
        tabs = "rename it to .tsv" if mark == "\t" else "with tabs as .tsv"
        raise ValueError(f"{file}: its header {names[0]!r} is separated by {mark!r}. Save it with commas, or {tabs}.")
    return names


def _known(names: Sequence[str]) -> tuple[str, str] | None:
    return next((pair for pair in _KNOWN if {*pair} <= {*names}), None)


def _phenomenon(names: Sequence[str]) -> str | None:
    return next((name for name in _PHENOMENA if name in names), None)


def _there(file: str, names: Sequence[str]) -> str:
    return f"{file} has the columns {', '.join(map(repr, names))}"


def _without_known(file: str, names: Sequence[str]) -> str:
    pairs = ", ".join(f"{a} and {b}" for a, b in _KNOWN)
    return f"{_there(file, names)}, and none of the known pairs of names ({pairs})."


def open_source(data_files: Mapping[str, corpora.DataFiles] | Any, columns: PairColumns) -> Any:
    """The source of the pairs in files by split; a source is itself. Nothing is read yet."""
    if corpora.is_source(data_files):
        return data_files
    load_args = supervised_tasks.texts_of_csv(data_files, columns.names)
    return corpora.HuggingFaceSource(data_files, columns.names, load_args=load_args)


def names_of_files(files: Sequence[str]) -> list[str]:
    """Short, different names of files: that of the file, of equal ones behind that of its folder."""
    paths = [pathlib.PurePath(file) for file in files]
    stems = [path.name.partition(".")[0] or path.name for path in paths]
    names = [
        stem if stems.count(stem) == 1 else f"{path.parent.name}_{stem}"
        for path, stem in zip(paths, stems, strict=True)
    ]
    names = [re.sub(r"[^\w.:#]+", "_", name) for name in names]
    return [name if names.count(name) == 1 else f"{name}_{i}" for i, name in enumerate(names)]
