"""The texts of `--input_file`: lines of a file or of standard input, or the rows of a table."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from limba.files import untrusted_files
from limba.inference import blanks, tasks_door

logger = logging.getLogger(__name__)

_MOST_OF_LINE = 256 * 2**20


def line_names(inputs: Sequence[str], file: str | None) -> Callable[[int], str]:
    """Names the texts of `--input`, and the lines or rows of a file after them; warns of texts that name files."""
    num_inputs = len(inputs)
    for text in filter(os.path.isfile, inputs):
        logger.warning("--input %s is taken for a text; --input_file %s reads the file of this name.", text, text)
    part = "row" if file and is_table(file) else "line"
    return lambda number: f"--input {number}" if number <= num_inputs else f"{part} {number - num_inputs} of {file}"


def is_table(file: str) -> bool:
    """Whether an input file has rows with columns, by its name."""
    return file != "-" and tasks_door.input_rows().is_table(file)


def read_texts(file: str | None, column: str | None) -> list[str]:
    """The texts of `--input_file`: its lines, or a column of a table; none without a file.

    Raises:
      FileNotFoundError: if it is not there.
      ValueError: if it is empty, for a column of a file without columns; see `read_lines` and
        `tasks.pipeline.input_rows`.
    """
    if column is not None and (file is None or not is_table(file)):
        raise ValueError(f"--text_column {column} is for a table, such as a csv, and --input_file is {file}.")
    if file is None:
        return []
    if column is None:
        texts = read_lines(file)
    else:
        check_input(file)
        texts = tasks_door.input_rows().of_column(file, column)
    if not texts:
        raise ValueError(f"--input_file {file} is empty; write one input a line.")
    return texts


def warn_of_blanks(file: str, texts: Sequence[str]) -> None:
    """Warns of what is a blank in a line or in a named column, and not in a row that a run's task reads."""
    if with_blanks := sum(blanks.BLANK in text for text in texts):
        logger.warning(
            "%d of %d rows of %s have %s, which is text there, as in training; a blank is <extra_id_0>, <extra_id_1> "
            "…, or [MASK] for an encoder.",
            with_blanks,
            len(texts),
            file,
            blanks.BLANK,
        )


def read_as_task(file: str, name: Any, module: str | None) -> list[str]:
    """What a run's task reads of a table; says it. Raises ValueError if the task or its columns cannot be found."""
    check_input(file)
    rows = tasks_door.input_rows()
    columns = untrusted_files.some([*map(untrusted_files.shown, rows.column_names(file))], 20)
    try:
        texts, how = rows.of_task(file, name, module)
    except ValueError as error:
        raise ValueError(
            f"--input_file {file} is a table with the columns {columns}, and the run's task does not read it: {error} "
            "Name the column with the texts: --text_column NAME."
        ) from error
    warn_of_blanks(file, texts)
    logger.info("%s: %d rows, read as task %r reads them: %s.", file, len(texts), name, how)
    return texts


def read_lines(file: str) -> list[str]:
    """Lines of a file, or of standard input for "-"; only \\n and \\r\\n end a line, not Unicode's other separators.

    Raises:
      FileNotFoundError: if it is not there.
      ValueError: if it is not UTF-8, or has a line of more than 256 MiB.
    """
    check_input(file)
    if file == "-":
        return [*_lines(sys.stdin.buffer, file)]
    with Path(file).open("rb") as opened:
        return [*_lines(opened, file)]


def _lines(opened: BinaryIO, file: str) -> Iterator[str]:
    number = 0
    while line := opened.readline(_MOST_OF_LINE + 1):
        number += 1
        if len(line) > _MOST_OF_LINE:  # A file with holes may be larger than memory.
            raise ValueError(f"--input_file {file} has more than {_MOST_OF_LINE:,} bytes in line {number}: cut it.")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")  # Some editors put a mark before the text.
        except UnicodeDecodeError as error:
            raise ValueError(
                f"--input_file {file} is not UTF-8 in line {number} ({error}); save it as UTF-8."
            ) from error
        yield text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def check_input(file: str) -> None:
    """Raises FileNotFoundError for an input file that is not there."""
    path = Path(file)
    if file != "-" and not path.is_file():
        found = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"--input_file {file} {found}; give a file with one input a line, or - for stdin.")
