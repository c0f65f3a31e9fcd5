"""Texts to answer from a table: a column of it, or what a task makes of its rows for the model."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from limba.tasks.pretraining.denoising import Denoise
from limba.tasks.registry import get_subtasks, providers
from limba.tasks.sources import arrow_tables, corpora
from limba.tasks.supervised import supervised_tasks
from limba.tasks.supervised.cell_texts import as_text
from limba.tasks.supervised.row_formats import UNKNOWN, Number, Row, Template
from limba.tasks.supervised.row_preprocessor import Supervise

_SPLIT = "input"


def is_table(file: str) -> bool:
    """Whether a file has rows with columns, by its name: csv, tsv, JSON or Parquet, also compressed."""
    try:
        return arrow_tables.builder_of(pathlib.PurePath(file)) != "text"
    except ValueError:
        return False


def column_names(file: str) -> list[str]:
    """Of all columns of a table. Raises BrokenFileError if it cannot be read."""
    return _source(file, ("text",)).column_names(_SPLIT)


def of_column(file: str, column: str) -> list[str]:
    """The texts of a column of a table, one a row; a missing value is an empty text.

    Raises:
      ValueError, OSError, BrokenFileError: if there is no such column, no row, or the file cannot be read.
    """
    return _texts(file, (column,), lambda row: as_text(row[column]))


def of_task(file: str, name: Any, module: str | None) -> tuple[list[str], str]:
    """What a task reads of the rows of a table, without their answers, and where: "column 'text'", or a template.

    Args:
      name, module: of the task, and what registers it; see `DatasetConfig`.

    Raises:
      ValueError: if there is no such task, or if it does not read its rows by one template or one column.
      ValueError, OSError, BrokenFileError: as `of_column`.
    """
    for task in get_subtasks(providers.find_provider(name, module)):
        for step in task.preprocessors:
            if isinstance(step, Denoise):
                return of_column(file, step.text_column), f"column {step.text_column!r}"
            if isinstance(step, Supervise) and isinstance(step.format, Template | Number):
                form, label = step.format, step.format.label_column
                columns = [column for column in form.columns if column != label]
                return _texts(file, columns, lambda row: form({**row, label: UNKNOWN})[0].inputs), repr(form.inputs)  # noqa: B023
    raise ValueError(f"The task {name!r} reads its rows neither by one column nor by one template.")


def _texts(file: str, columns: Sequence[str], text_of: Callable[[Row], str]) -> list[str]:
    return [text_of(row) for _, _, row in _source(file, columns).numbered_documents(_SPLIT)]


def _source(file: str, columns: Sequence[str]) -> corpora.HuggingFaceSource:
    files = {_SPLIT: file}
    return corpora.HuggingFaceSource(files, columns, load_args=supervised_tasks.texts_of_csv(files, columns))
