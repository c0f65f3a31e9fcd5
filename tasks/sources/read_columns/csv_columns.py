"""Files of csv as tables of the columns that a task reads; the loader of `datasets` converts all of them."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa


def tables(
    open_file: Callable[[], BinaryIO],
    columns: Sequence[str],
    load_args: Mapping[str, Any],
    names: dict[str, Any],
    fill: Mapping[str, str],
) -> Iterator[pa.Table]:
    """The rows as that loader reads them, 10,000 at a time; a column that is missing is empty.

    Args:
      load_args: the options of `datasets`.
      names: gets the names of all columns, with the values of those that are filled.
      fill: the values of columns that the file may lack.

    Raises:
      ValueError: for rows that have more fields than the header.
    """
    import pandas
    from datasets.packaged_modules.csv import csv

    warnings.simplefilter("ignore", pandas.errors.DtypeWarning)  # of a column that is read, the error says it
    with open_file() as file:
        try:
            read = pandas.read_csv(file, iterator=True, **csv.CsvConfig(**load_args).pd_read_csv_kwargs)
        except pandas.errors.EmptyDataError:  # It is blank.
            return
        for rows in read:
            names.update(dict.fromkeys(map(str, rows.columns)))
            if not isinstance(rows.index, pandas.RangeIndex):
                # pandas takes the extra fields for an index, and every column has the values of another.
                raise ValueError(
                    f"rows have {len(rows.columns) + rows.index.nlevels} fields and the header {len(rows.columns)}, "
                    f"{', '.join(map(repr, names))}; put texts that hold the delimiter into double quotes"
                )
            lacking = {name: text for name, text in fill.items() if name not in rows.columns}
            names.update(lacking)
            wanted = rows.assign(**lacking).reindex(columns=list(columns))
            yield pa.Table.from_pandas(wanted, preserve_index=False)
