"""Files in CoNLL-U, the format of Universal Dependencies (universaldependencies.org/format.html)."""

import dataclasses
import gzip
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_NUM_FIELDS = 10
_ID = re.compile(r"(\d+)(?:([-.])(\d+))?")


@dataclasses.dataclass(frozen=True)
class Word:
    """A syntactic word.

    Attributes:
      number: in its sentence, from 1.
      lemma: in lower case.
      features: by name, such as {"Number": "Sing"}.
      head: the number of the word that it depends on; 0 of the root.
      relation: to its head, such as "nsubj" or "aux:pass".
      token: the index of its token, where it is a token by itself; None for a part of a token of several words.
    """

    number: int
    form: str
    lemma: str
    part: str
    features: Mapping[str, str]
    head: int
    relation: str
    token: int | None


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence: its words, and the tokens that the text consists of.

    Attributes:
      place: file and line where it begins, for messages.
      tokens: each with the blank behind it, "" where the text has none.
    """

    place: str
    words: Sequence[Word]
    tokens: Sequence[tuple[str, str]]

    def text(self, other: Mapping[int, str] | None = None) -> str:
        """The text, with other forms at some tokens."""
        other = other or {}
        return "".join(other.get(i, form) + blank for i, (form, blank) in enumerate(self.tokens)).strip()


def read(files: Sequence[str]) -> Iterator[Sentence]:
    """The sentences of files, in their order. Files whose names end with .gz are decompressed.

    Raises:
      FileNotFoundError: if a file is not there.
      ValueError: for a line that is not of the format; the message has the file and the line.
    """
    for file in files:
        path = Path(file).expanduser()
        if not path.is_file():
            found = "is a folder" if path.is_dir() else "does not exist"
            raise FileNotFoundError(f"{file} {found}; give files in CoNLL-U, such as those of a treebank.")
        with path.open("rb") as content:
            opened: Any = gzip.GzipFile(fileobj=content) if path.suffix == ".gz" else content
            yield from _sentences(file, io.TextIOWrapper(opened, encoding="utf-8-sig", newline="\n"))


def _sentences(file: str, lines: IO[str]) -> Iterator[Sentence]:
    rows: list[list[str]] = []
    begin = number = 0
    try:
        for number, line in enumerate(lines, 1):
            line = line.rstrip("\r\n")
            if line.strip() and not line.startswith("#"):
                fields = line.split("\t")
                if len(fields) != _NUM_FIELDS:
                    raise ValueError(
                        f"{file}, line {number}, has {len(fields)} fields, and CoNLL-U {_NUM_FIELDS} with tabs between "
                        f"them: {line[:60]!r}."
                    )
                begin = begin or number
                rows.append(fields)
            elif not line.strip() and rows:
                yield _sentence(f"{file}, line {begin}", rows)
                rows, begin = [], 0
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 after line {number} ({error.reason}); save it as UTF-8.") from error
    if rows:
        yield _sentence(f"{file}, line {begin}", rows)


def _sentence(place: str, rows: Sequence[Sequence[str]]) -> Sentence:
    words: list[Word] = []
    tokens: list[tuple[str, str]] = []
    last_of_token = 0  # The last word of a token of several words.
    for number, form, lemma, part, _, features, head, relation, _, misc in rows:
        found = _ID.fullmatch(number)
        if found is None or (found[2] != "." and not head.isdigit() and found[2] is None):
            raise ValueError(f"The sentence at {place} has a word with ID {number!r} and HEAD {head!r}, not numbers.")
        if found[2] == ".":  # An empty node, of the enhanced graph: it is not in the text.
            continue
        blank = "" if "SpaceAfter=No" in misc.split("|") else " "
        if found[2] == "-":
            tokens.append((form, blank))
            last_of_token = int(found[3])
            continue
        if int(number) != len(words) + 1:
            raise ValueError(f"The sentence at {place} has the word {number} where {len(words) + 1} is expected.")
        is_token = int(number) > last_of_token
        token = len(tokens) if is_token else None
        if is_token:
            tokens.append((form, blank))
        pairs = dict(x.split("=", 1) for x in features.split("|") if "=" in x)
        words.append(Word(int(number), form, lemma.lower(), part, pairs, int(head), relation, token))
    return Sentence(place, words, tokens)
