"""Texts of a column of data files, for what of them a vocabulary knows."""

import itertools
from collections.abc import Iterator

from limba.files.untrusted_files import shown
from limba.tasks.sources import corpora


def texts_of_files(files: list[str], text_column: str, most: int) -> Iterator[tuple[str, str]]:
    """The texts of a column, each with its file and row.

    Raises:
      FileNotFoundError, ValueError, OSError: if they cannot be read, or hold something else.
    """
    source = corpora.HuggingFaceSource({"train": files}, [text_column])
    for file, row, document in itertools.islice(source.numbered_documents("train"), most):
        if isinstance(text := document[text_column], str):
            yield text, f"{file}, row {row}"
        elif text is not None:
            raise ValueError(f"Column {text_column!r} of {file} has {shown(text)} in row {row}, which is not text.")
