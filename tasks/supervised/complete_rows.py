"""Rows of which only complete ones make examples, as in run_summarization.py."""

import dataclasses

from limba.tasks.supervised.cell_texts import as_text
from limba.tasks.supervised.row_formats import Example, Row, Template


@dataclasses.dataclass(frozen=True)
class CompleteTemplate(Template):
    """A template that makes no example of a row without an answer, or without any text in the columns of its inputs."""

    def __call__(self, row: Row) -> list[Example]:
        has_all = as_text(row[self.label_column]) and any(as_text(row[name]) for name in self._fields)
        return super().__call__(row) if has_all else []
