"""The columns of files with minimal pairs: BLiMP's, MultiBLiMP's, or others by name."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from limba.tasks.sources import corpora
from limba.tasks.supervised import found_columns
from limba.tasks.supervised.cell_texts import as_text

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
    file, names = found_columns.of_data(data_files)
    if not names:
        return PairColumns()
    if (known := found_columns.known_pair(names, _KNOWN)) is None:
        raise ValueError(
            f"{found_columns.without_known(file, names, _KNOWN)} Name the columns with the right and the wrong "
            "sentences: columns=minimal_pairs.PairColumns('RIGHT', 'WRONG', phenomenon=None)."
        )
    return PairColumns(*known, _phenomenon(names))


def find(file: str, right: str | None, wrong: str | None, phenomenon: str | None) -> PairColumns:
    """The columns of a file: those that are named, else those of a known format.

    Raises:
      FileNotFoundError, BrokenFileError: if it is not there, or cannot be read.
      ValueError: if it is empty, or lacks a column.
    """
    names = found_columns.of_file(file)
    if not names:
        raise ValueError(f"{file} is empty; give a file with pairs of sentences.")
    there = found_columns.described(file, names)
    for flag, name in (("good", right), ("bad", wrong), ("phenomenon", phenomenon)):
        if name is not None and name not in names:
            raise ValueError(f"{there}, and no {name!r}, which --{flag}_column names.")
    known = found_columns.known_pair(names, _KNOWN) or (None, None)
    found = (right or known[0], wrong or known[1])
    if None in found:
        raise ValueError(
            f"{found_columns.without_known(file, names, _KNOWN)} Name the columns with the right and the wrong "
            "sentences: --good_column NAME --bad_column NAME."
        )
    return PairColumns(str(found[0]), str(found[1]), phenomenon or _phenomenon(names))


def _phenomenon(names: Sequence[str]) -> str | None:
    return next((name for name in _PHENOMENA if name in names), None)


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
