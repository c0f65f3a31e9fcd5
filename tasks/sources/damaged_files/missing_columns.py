"""A column that a file lacks: the nearest name, another delimiter, or a csv without a header."""

import difflib
import unicodedata
from collections.abc import Sequence

from limba.files.untrusted_files import shown, some

# A name of a column that is longer, or has more words, is taken for a row's value.
_LONGEST_NAME, _MOST_WORDS = 40, 3
_MOST_SHOWN = 20


def other_delimiter(found: Sequence[str]) -> str | None:
    """What separates the names in a header that a csv has as one name; None if it is another header."""
    return next((mark for mark in (";", "\t", "|") if len(found) == 1 and mark in found[0]), None)


class MissingColumnError(ValueError):
    """A column that a file lacks.

    Attributes:
      nearest: the column that was probably meant; None if the cause is another.
    """

    nearest: str | None = None


def error(
    column: str, found: Sequence[str], wanted: Sequence[str], builder: object, where: str, file: str
) -> MissingColumnError:
    """The error for a column that is not there, with the remedy.

    Args:
      column: the missing one of `wanted`, the columns to read.
      found: the columns that are there.
      builder: the loader, such as "csv".
      where: the split and its files, for the message.
      file: the first of them.
    """
    nearest = difflib.get_close_matches(column, found, n=1, cutoff=0.5)
    cause = _other_cause(column, found, wanted, builder, file, bool(nearest))
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    if builder == "csv" and not nearest:
        hint = ". If these are values, put a header with the names of the columns before them."
    names = f". The columns are {some([*map(shown, found)], _MOST_SHOWN)}{hint}"
    missing = MissingColumnError(f"There is no column {column!r} in {where}{cause or names}")
    missing.nearest = nearest[0] if nearest and not cause else None
    return missing


def _other_cause(
    column: str, found: Sequence[str], wanted: Sequence[str], builder: object, file: str, is_near: bool
) -> str:
    """Why a column is not there, if its name is not wrong, and the remedy, as the end of a sentence; "" if it is."""
    other = other_delimiter(found)
    if builder == "csv" and other is not None:
        tabs = "rename it to .tsv" if other == "\t" else "with tabs as .tsv"
        source = (
            f"sources.HuggingFaceSource({{'train': {file!r}}}, columns={list(wanted)}, "
            f"load_args={{'delimiter': {other!r}}})"
        )
        return (
            f": its header {shown(found[0])} is separated by {other!r}. Save it with commas, {tabs}, or give "
            f"data_files={source} with all splits, after `from tasks import sources`."
        )
    if f"{{{column}}}" in found:
        return (
            f": braces stand for the column whose name is in them, and the column is {{{column}}}. Rename it: "
            "a name cannot have braces here."
        )
    same = [name for name in found if unicodedata.normalize("NFC", name) == unicodedata.normalize("NFC", column)]
    if same:
        return (
            f": the column there looks the same, and has {len(same[0])} characters where yours has "
            f"{len(column)}: letters with marks are written in another form of Unicode (NFC, NFD). Copy the name from "
            f"here, {same[0]!r}, or rename the column."
        )
    if builder == "csv" and not is_near and any(map(_looks_like_a_value, found)):
        first = ",".join(found)
        return (
            ". The first line of a csv must be its header, with the names of the columns, and here it is "
            f"{first[:60] + ('…' if len(first) > 60 else '')!r}. Put a header such as {','.join(wanted)!r} before it."
        )
    return ""


def _looks_like_a_value(name: str) -> bool:
    return len(name) > _LONGEST_NAME or len(name.split()) > _MOST_WORDS or name.replace(".", "", 1).isdigit()
