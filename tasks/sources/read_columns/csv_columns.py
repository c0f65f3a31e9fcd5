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
      ValueError: for rows that have more fields than the header, and for a column that is there twice.
    """
    import pandas
    from datasets.packaged_modules.csv import csv

    config = csv.CsvConfig(**load_args)
    with bounded_lines.Portions(open_file()) as file:
        try:
            read = pandas.read_csv(file, iterator=True, **config.pd_read_csv_kwargs)
        except pandas.errors.EmptyDataError:  # It is blank.
            return
        for rows in read:
            file.begin()
            if not names and (suspects := [name for name in columns if f"{name}.1" in rows.columns]):
                _check_names(open_file, config.sep, suspects)
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


def _check_names(open_file: Callable[[], BinaryIO], delimiter: str, suspects: Sequence[str]) -> None:
    """Raises ValueError if a column is there twice: pandas calls the second one NAME.1, and it would not be read."""
    if len(delimiter) > 1:  # a pattern
        return
    with io.TextIOWrapper(open_file(), "utf-8-sig", errors="replace", newline="") as lines:
        header = next(filter(None, csv_rows.reader(lines, delimiter=delimiter)), [])
    if doubled := next((name for name in suspects if header.count(name) > 1), None):
        raise ValueError(f"the header has {doubled!r} twice; rename one of these columns or leave it out")


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
