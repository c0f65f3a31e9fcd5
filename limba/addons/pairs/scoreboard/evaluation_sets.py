"""The files that rows of a scoreboard are measured on: texts, minimal pairs, queries and answers, labelled words."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons.pairs import differing_words, pair_columns, pair_files, word_files
from limba.addons.pairs.pair_columns import PairColumns
from limba.addons.pairs.scoreboard.leaks import Leaks
from limba.files import untrusted_files
from limba.tasks.metrics.text_pair_metrics import MOST_PAIRS
from limba.tasks.supervised import supervised_tasks, text_pairs
from limba.tasks.supervised.cell_texts import as_text

SPLIT = "board"


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """A file with what is measured.

    Attributes:
      kind: "texts", "pairs", "retrieval" or "words".
      items: a tuple of texts each: one of "texts", the right and the wrong sentence, a query and its answer, or the
        words of a sentence with blanks between them.
      places: of each item in its file, for messages.
      columns: of pairs.
      leaks: what of the items stands in the training corpus; None if none was given.
      labels: of "words": the labels of the words of each item.
      parts: the files of a folder; () where `file` is one.
    """

    name: str
    file: str
    kind: str
    items: Sequence[tuple[str, ...]]
    places: Sequence[str]
    columns: PairColumns | None = None
    leaks: Leaks | None = None
    labels: Sequence[Sequence[str]] = ()
    parts: Sequence[str] = ()

    @property
    def texts(self) -> list[str]:
        """All texts, those of an item behind each other."""
        return [text for item in self.items for text in item]

    def with_leaks(self, leaks: Leaks) -> "EvaluationSet":
        return dataclasses.replace(self, leaks=leaks.by(len(self.items[0])))


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a command line asks for: names of files, patterns or folders, and columns of them.

    Attributes:
      columns: the names "text", "good", "bad", "phenomenon" and "label"; None finds known ones.
    """

    texts: Sequence[str]
    pairs: Sequence[str]
    retrieval: Sequence[str]
    words: Sequence[str]
    columns: Mapping[str, str | None]


def read(asked: Asked) -> list[EvaluationSet]:
    """The sets, each with all its items.

    Raises:
      FileNotFoundError, BrokenFileError: if a file is not there, or cannot be read.
      ValueError: for a file without what is measured, and for a row that is empty or has no difference.
    """
    given = {"--text": asked.texts, "--pairs": asked.pairs, "--retrieval": asked.retrieval}
    texts, pairs, retrieval = (pair_files.find(files, flag) for flag, files in given.items())
    folders = {name: pair_files.find([name], "--pairs") for name in asked.pairs if Path(name).expanduser().is_dir()}
    of_folders = {file for files in folders.values() for file in files}
    pairs = [*folders, *(file for file in pairs if file not in of_folders)]
    names = iter(pair_columns.names_of_files([*texts, *pairs, *retrieval, *asked.words]))
    sets = [_of_texts(next(names), file, asked.columns["text"] or "text") for file in texts]
    sets += [_of_pairs(next(names), file, folders.get(file, [file]), asked.columns) for file in pairs]
    sets += [_of_retrieval(next(names), file) for file in retrieval]
    return sets + [_of_words(next(names), file, asked.columns["label"]) for file in asked.words]


def _rows(file: str | Sequence[str], columns: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    source = supervised_tasks.open_texts({SPLIT: file}, columns)
    for name, number, row in source.numbered_documents(SPLIT):
        yield f"row {number} (the first is 0) of {name}", row


def _of_texts(name: str, file: str, column: str) -> EvaluationSet:
    rows = [(as_text(row[column]).strip(), place) for place, row in _rows(file, [column])]
    rows = [row for row in rows if row[0]]
    if not rows:
        raise ValueError(f"--text {file} has no text: give one a line, or a table with a column {column!r}.")
    return EvaluationSet(name, file, "texts", [(text,) for text, _ in rows], [place for _, place in rows])


def _of_pairs(name: str, file: str, parts: Sequence[str], named: Mapping[str, str | None]) -> EvaluationSet:
    columns, *others = (pair_columns.find(part, named["good"], named["bad"], named["phenomenon"]) for part in parts)
    if any(other != columns for other in others):
        raise ValueError(f"--pairs {file} has files with different columns; name the files of one kind.")
    items, places = [], []
    for place, row in _rows(parts, columns.names):
        try:
            right, wrong, _ = columns.read(row)
            if not differing_words.differences(right, wrong):
                raise ValueError(f"the two sentences have the same words, {untrusted_files.shown(right)}")
        except ValueError as error:
            raise ValueError(f"--pairs, {place}: {error}. Correct this row, or leave it out.") from error
        items.append((right, wrong))
        places.append(place)
    if not items:
        raise ValueError(f"--pairs {file} has no rows: give a file with pairs of sentences.")
    return EvaluationSet(name, file, "pairs", items, places, columns, parts=parts)


def _of_retrieval(name: str, file: str) -> EvaluationSet:
    columns = text_pairs.find_columns({SPLIT: file}, None)
    items, places = [], []
    for place, row in _rows(file, columns.columns):
        try:
            (example,) = columns(row)
        except ValueError as error:
            raise ValueError(f"--retrieval, {place}: {error}. Write it, or leave the row out.") from error
        items.append((example.inputs, example.targets))
        places.append(place)
    if not 2 <= len(items) <= MOST_PAIRS:
        raise ValueError(
            f"--retrieval {file} has {len(items):,} rows; an answer is looked for among those of 2 to {MOST_PAIRS:,}."
        )
    return EvaluationSet(name, file, "retrieval", items, places)


def _of_words(name: str, file: str, label: str | None) -> EvaluationSet:
    found = word_files.read(file, label)
    items, places = [(" ".join(x.words),) for x in found], [x.place for x in found]
    return EvaluationSet(name, file, "words", items, places, labels=[x.labels for x in found])


def corpus(files: Sequence[str], column: str) -> Any:
    """The source of the documents of a training corpus, whose files are checked.

    Raises:
      FileNotFoundError, BrokenFileError, ValueError: if a file is not there, cannot be read or lacks the column.
    """
    source = supervised_tasks.open_texts({SPLIT: list(files)}, [column])
    source.check(SPLIT)
    return source


def documents(source: Any, column: str) -> Iterator[list[str]]:
    """The texts of a corpus, some at a time, in the order of its files."""
    for _, _, table in source.numbered_tables(SPLIT):
        yield [as_text(value) for value in table.column(column).to_pylist()]
