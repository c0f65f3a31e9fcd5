"""The files of a folder that Limba wrote: by the list and the hashes in its `conversion_report.json`, and by files that
the same conversion writes now."""

import filecmp
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from limba.convert.compare.comparison_rows import Comparison
from limba.files import json_text, untrusted_files, untrusted_json
from limba.files.output_folder import CARD, REPORT, changed
from limba.files.untrusted_files import cut, some

# How the note of a row begins that could have been compared.
NOT_COMPARED = "not compared: "
# Where a conversion that is compared has no room.
REMEDY = "set TMPDIR to a folder of another disk"
_CARD_ROW, _HASHES = "the card", "hashes of files"


def compare(
    label: str, folder: Path, report: Mapping[str, Any], there: Collection[str], by_hash: bool
) -> Iterator[Comparison]:
    """Rows of the files that are lost or changed.

    Args:
      label: of the model in the table.
      report: of the folder.
      there: the names of the files in the folder, those of its folders too.
      by_hash: whether a changed file is another model. Else what it says is compared, and it is not known what else
        the change does.
    """
    listed = report.get("files") or [REPORT]
    yield row(f"files missing, {label}", sorted({*listed} - {*there}), f"of {len(listed)}")
    found = changed(folder, report) if report.get("files") else None
    if found is None:
        what = f"files changed, {label}" if by_hash else f"{_HASHES}, {label}"
        note = f"{REPORT} is of an earlier version and has no hashes; convert again, with --overwrite"
        yield Comparison(what, None, 0, f"{NOT_COMPARED}{note}")
        return
    others = [name for name in found if name != CARD]
    if others and not by_hash:
        note = f"{NOT_COMPARED}not as they were exported: {some([*map(cut, others)])}"
        yield Comparison(f"files changed, {label}", None, 0, note)
    else:
        yield row(f"files changed, {label}", others, f"of {len(listed)}, by SHA-256")
    if CARD in found:
        yield _card(f"{_CARD_ROW}, {label}", folder / CARD)


def is_same(written: Path, found: Path) -> bool:
    """Whether two files have the same bytes, or the same JSON. Raises ValueError if what was found is damaged."""
    if filecmp.cmp(written, found, shallow=False):
        return True
    if found.suffix != ".json":
        return False
    a, b = (json_text.dumps(untrusted_json.read(file), sort_keys=True) for file in (written, found))
    return a == b


def other_versions(report: Mapping[str, Any], here: Mapping[str, str]) -> str:
    """What versions wrote a folder, by the keys of its report, if they are not those of `here`; "" if they are."""
    differ = [f"{key.removesuffix('_version')} {cut(str(report.get(key)))}, here {x}" for key, x in here.items()]
    return "" if all(report.get(key) == x for key, x in here.items()) else f"written by {'; '.join(differ)}"


def compare_anew(
    label: str,
    folder: Path,
    anew: Path,
    names: Collection[str],
    others: str,
    is_same: Callable[[Path, Path], bool] = is_same,
) -> Comparison:
    """The row of the files that the conversion of the other model writes otherwise.

    Hashes do not show these: who changes files may write a report with the hashes of his own.

    Args:
      label: of the model in the table.
      folder: its files.
      anew: where the conversion has written.
      names: the files of the folder; the report and the card do not count.
      others: what else may be the reason, such as another version; "" if nothing is known.
      is_same: compares a file that was written with one of the folder.
    """
    written = {str(file.relative_to(anew)) for file in anew.rglob("*") if file.is_file()}
    written = {name for name in written if not name.startswith(".")}
    differ = {*names} - {CARD, REPORT} ^ written
    differ |= {name for name in written - differ if not is_same(anew / name, folder / name)}
    what, of = f"files written otherwise, {label}", f"of {len(written)}, in a conversion of the other model"
    if differ and others:
        return Comparison(what, None, 0, f"{NOT_COMPARED}{others}: {some([*map(cut, sorted(differ))])}")
    return row(what, sorted(differ), of)


def _card(what: str, file: Path) -> Comparison:
    """The row of a card that is not the one that was written."""
    try:
        untrusted_files.read_text(file)
    except ValueError as error:
        return Comparison(what, 1, 0, str(error))
    return Comparison(what, None, 0, f"{NOT_COMPARED}{CARD} is not as it was written")


def may_differ(row: Comparison) -> bool:
    """Whether the row is no error if it was not compared: people edit cards, and nothing of the model is in them."""
    return row.what.partition(",")[0] in (_CARD_ROW, _HASHES)


def row(what: str, names: list[str], of: str) -> Comparison:
    """The row of files that are wrong."""
    more = f": {some([*map(cut, names)])}" if names else ""
    return Comparison(what, len(names), 0, f"{of}{more}")
