"""Whether the documents of a corpus are documents: texts that say something, and no whole files."""

import collections
import itertools
from collections.abc import Iterator
from typing import Any

from limba.data.lint_findings import Finding
from limba.files.untrusted_files import shown
from limba.tasks.pretraining import denoising
from limba.tasks.registry import Task
from limba.tasks.sources.sharded import ShardedSource

# Documents that are looked at: the first ones, up to a number of characters.
_NUM_DOCUMENTS, _NUM_CHARACTERS = 2000, 16_000_000
# One word or character is repeated from this number on; one word alone in a document, in so many documents.
_REPEATED = 8
# Of all documents, those that say nothing; a line of asterisks between two texts is in most corpora.
_SHARE = 1e-3
# Bytes of a document that is perhaps a file: longer than nearly all books.
_LONG = 1 << 20


def check(task: Any, split: str) -> Iterator[Finding]:
    """Findings about the first documents of a pre-training task: those without content, and those that are too long."""
    if not (isinstance(task, Task) and isinstance(task.source, ShardedSource)):
        return
    column = next((step.text_column for step in task.preprocessors if isinstance(step, denoising.Denoise)), None)
    if column is None:
        return
    try:
        found = list(_documents(task.source, split, column))
    except (ValueError, OSError, RuntimeError):  # What cannot be read is a finding of the first examples.
        return
    yield from _without_content(task.name, found)
    yield from _long(task.name, found)


def _documents(source: ShardedSource, split: str, column: str) -> Iterator[tuple[str, str]]:
    """Texts that are not blank, and their places."""
    left = _NUM_CHARACTERS
    for file, row, document in itertools.islice(source.numbered_documents(split), _NUM_DOCUMENTS):
        text = document[column]
        if isinstance(text, str) and text.strip():
            yield text, f"row {row} (counted from 0) of {file}"
            left -= len(text)
        if left <= 0:
            return


def _without_content(task: str, found: list[tuple[str, str]]) -> Iterator[Finding]:
    alone = collections.Counter(text.strip() for text, _ in found if len(text.split()) == 1)
    empty = [
        (text, place, what)
        for text, place in found
        if (what := describe(text) or ("one word" if alone[text.strip()] >= _REPEATED else ""))
    ]
    if not empty or len(empty) < _SHARE * len(found):
        return
    text, place, what = empty[0]
    yield Finding(
        "no_content",
        "warning",
        f"{len(empty):,} of the first {len(found):,} documents of task {task!r} say nothing: they are punctuation "
        f"only, or one word or character again and again. The first is {place}: {what}, {shown(text)}.",
        "the model learns to repeat, and masked spans that can be guessed teach nothing else",
        "Leave them out of the files; look at how the text was extracted.",
    )


def describe(text: str) -> str:
    """What a text without content is; "" of another, and of one with few words or characters."""
    if not any(character.isalnum() for character in text):
        return "no letter and no number"
    words = text.split()
    if len(words) >= _REPEATED and len({*words}) == 1:
        return f"one word {len(words):,} times"
    if len(words) == 1 and len(text) >= _REPEATED and len({*words[0]}) == 1:
        return f"one character {len(words[0]):,} times"
    return ""


def _long(task: str, found: list[tuple[str, str]]) -> Iterator[Finding]:
    # A character has at most 4 bytes.
    sizes = [(len(text.encode("utf-8", "surrogatepass")), place) for text, place in found if len(text) > _LONG // 4]
    long = [(size, place) for size, place in sizes if size >= _LONG]
    if long:
        size, place = max(long)
        yield Finding(
            "long_documents",
            "warning",
            f"{len(long):,} of the first {len(found):,} documents of task {task!r} have {_LONG >> 20} MB or more: the "
            f"longest has {size / 1e6:,.1f} MB, {place}. Perhaps a whole file is one document.",
            "documents are what is shuffled and held out: batches have many neighbours of one text",
            "Give each text or paragraph a row of its own: one JSON object a line, or a line of a txt file.",
        )
