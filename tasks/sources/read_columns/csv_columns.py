"""Files of csv as tables of the columns that a task reads; the loader of `datasets` converts all of them."""

import csv as csv_rows
import io
import logging
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from limba.files.untrusted_files import shown, some
from limba.tasks.sources.read_columns import bounded_lines

logger = logging.getLogger(__name__)

_MOST_OF_HEADER, _MOST_WITH_DOUBLED = 2**20, 5000
# Files of which `_warn_of_quotes` has warned.
_warned: set[str] = set()


def tables(
    open_file: Callable[[], BinaryIO],
    columns: Sequence[str],
    load_args: Mapping[str, Any],
    names: dict[str, Any],
    fill: Mapping[str, str],
    file_name: str,
) -> Iterator[pa.Table]:
    """The rows as that loader reads them, 10,000 at a time; a column that is missing is empty.

    Args:
      load_args: the options of `datasets`.
      names: gets the names of all columns, with the values of those that are filled.
      fill: the values of columns that the file may lack.
      file_name: for warnings.

    Raises:
      ValueError: for rows that have more fields than the header, for a column that is there twice, and for a header
        that pandas would read for minutes.
    """
    import pandas
    from datasets.packaged_modules.csv import csv

    config = csv.CsvConfig(**load_args)
    portions = bounded_lines.Portions(open_file())
    with io.BufferedReader(portions, _MOST_OF_HEADER) as file:
        header = _header(file.peek(), config.sep)
        try:
            read = pandas.read_csv(file, iterator=True, **config.pd_read_csv_kwargs)
        except pandas.errors.EmptyDataError:  # It is blank.
            return
        for rows in read:
            portions.begin()
            # pandas calls the second one NAME.1, and it would not be read.
            if doubled := next((x for x in columns if f"{x}.1" in rows.columns and header.count(x) > 1), None):
                raise ValueError(f"the header has {doubled!r} twice; rename one of these columns or leave it out")
            names.update(dict.fromkeys(map(str, rows.columns)))
            if not isinstance(rows.index, pandas.RangeIndex):
                # pandas takes the extra fields for an index, and every column has the values of another.
                raise ValueError(
                    f"rows have {len(rows.columns) + rows.index.nlevels} fields and the header {len(rows.columns)}, "
                    f"{some([*map(shown, names)], 20)}; put texts that hold the delimiter into double quotes"
                )
            lacking = {name: text for name, text in fill.items() if name not in rows.columns}
            names.update(lacking)
            wanted = rows.assign(**lacking).reindex(columns=list(columns))
            if config.sep == "\t":
                _warn_of_quotes(file_name, wanted)
            yield pa.Table.from_pandas(wanted, preserve_index=False)


def _header(beginning: bytes, delimiter: str) -> list[str]:
    """The fields of the first line, from the beginning of a file; [] if a pattern separates them.

    Raises:
      TooManyBytesError: if pandas would take minutes for them: for each of the same name it looks through all others.
    """
    if len(beginning) >= _MOST_OF_HEADER and not {*b"\r\n\0"} & {*beginning}:
        raise bounded_lines.TooManyBytesError(f"its first line, the header, has more than {_MOST_OF_HEADER:,} bytes")
    lines = io.StringIO(beginning.decode("utf-8-sig", "replace"), newline="")
    try:
        found = next(filter(None, csv_rows.reader(lines, delimiter=delimiter)), []) if len(delimiter) == 1 else []
    except csv_rows.Error:  # A field of more than 131072 characters.
        return []
    if len(found) > _MOST_WITH_DOUBLED and len({*found}) < len(found):
        count = f"{len(found):,} columns, of which {len(found) - len({*found}):,} are called like others"
        raise bounded_lines.TooManyBytesError(f"its header has {count}; rename them, or leave them out")
    return found


def _warn_of_quotes(file_name: str, rows: Any) -> None:
    """Warns, once a file, of a text with a tab and a line break: it may be several rows of a file without quoting."""
    if file_name in _warned or multiprocessing.parent_process() is not None:
        return
    for row, values in zip(rows.index, rows.itertuples(index=False), strict=True):
        if found := next((x for x in values if isinstance(x, str) and "\t" in x and "\n" in x), None):
            _warned.add(file_name)
            logger.warning(
                "%s: row %d (the first is 0) has a tab and a line break in a text, %r: a quote at the beginning of a "
                "text takes in everything up to the next quote, also whole rows with their labels. Remove such quotes, "
                "or write the text between quotes and each quote inside of it twice.",
                file_name,
                row,
                found[:80],
            )
            return
