"""Files in CoNLL-U, the format of Universal Dependencies (universaldependencies.org/format.html)."""

import dataclasses
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.files import untrusted_files
from limba.files.untrusted_files import shown
from limba.tasks.sources.read_columns import bounded_lines

_NUM_FIELDS = 10
_ID = re.compile(r"([0-9]{1,9})(?:([-.])([0-9]{1,9}))?")
_HEAD = re.compile("[0-9]{1,9}")
# The longest sentences of treebanks have some hundred words, the largest treebanks 220 MB.
MOST_WORDS, MOST_UNPACKED = 100_000, 2**28


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
        yield from _sentences(file)


def numbered_lines(file: str, newline: str | None = "\n") -> Iterator[tuple[int, str]]:
    """The lines of a text in UTF-8, from 1; of a name with .gz at its end decompressed. `newline` is that of `open`.

    Raises:
      FileNotFoundError: if it is not there.
      ValueError: if it is not a file or not such a text, or too long a line, or unpacked too long.
    """
    path = Path(file).expanduser()
    untrusted_files.check_is_file(path)
    number = 0
    with path.open("rb") as content:
        opened: Any = _Unpacked(fileobj=content) if path.suffix == ".gz" else content
        try:
            for line in io.TextIOWrapper(bounded_lines.bounded(opened), encoding="utf-8-sig", newline=newline):
                number += 1
                yield number, line
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 after line {number} ({error.reason}); save it as UTF-8.") from error
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(f"{file} cannot be decompressed ({error}); download it again.") from error
        except ValueError as error:
            raise ValueError(f"{file}: {error}.") from None


class _Unpacked(gzip.GzipFile):
    """A compressed file, of which some kilobytes may stand for any number of sentences."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > MOST_UNPACKED:
            raise ValueError(f"unpacked it has more than {MOST_UNPACKED:,} bytes; unpack it, or divide it")
        return super().read(size)


def _sentences(file: str) -> Iterator[Sentence]:
    rows: list[list[str]] = []
    begin = 0
    for number, line in numbered_lines(file):
        line = line.rstrip("\r\n")
        if line.strip() and not line.startswith("#"):
            fields = line.split("\t")
            if len(fields) != _NUM_FIELDS:
                raise ValueError(
                    f"{file}, line {number}, has {len(fields)} fields, and CoNLL-U {_NUM_FIELDS} with tabs between "
                    f"them: {shown(line)}."
                )
            begin = begin or number
            rows.append(fields)
            if len(rows) > MOST_WORDS:
                raise ValueError(
                    f"The sentence at {file}, line {begin}, has more than {MOST_WORDS:,} words; an empty line ends one."
                )
        elif not line.strip() and rows:
            yield _sentence(f"{file}, line {begin}", rows)
            rows, begin = [], 0
    if rows:
        yield _sentence(f"{file}, line {begin}", rows)


def _sentence(place: str, rows: Sequence[Sequence[str]]) -> Sentence:
    words: list[Word] = []
    tokens: list[tuple[str, str]] = []
    last_of_token = 0  # The last word of a token of several words.
    for number, form, lemma, part, _, features, head, relation, _, misc in rows:
        found = _ID.fullmatch(number)
        if found is None or (found[2] is None and not _HEAD.fullmatch(head)):
            raise ValueError(
                f"The sentence at {place} has a word with ID {shown(number)} and HEAD {shown(head)}, not numbers."
            )
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
