"""Texts of an evaluation that also stand in a training corpus: words in a row, and whole lines.

The corpus is read once, and memory grows with the texts to look for. Words are compared without punctuation and case.
In a script without blanks between words each character is a word.
"""

import collections
import dataclasses
import unicodedata
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from limba.addons.pairs import differing_words

# NGRAM words in a row are a leak; of a shorter text all its words, and of one below SHORTEST only a whole line.
NGRAM, SHORTEST = 13, 5
# Of a hash of words in a row. An even one would shift the first words out of 64 bits.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
# Between documents, so that no row of words goes over two of them; hashes of words have 32 bits.
_BORDER = np.array([2**63], np.uint64)
_WORDS_AT_ONCE = 2**18
# A first table of bytes has so many places for each key to look for: then one in 32 other keys is looked up in vain.
_PLACES_OF_A_KEY = 32


class _Characters(dict[int, str]):
    """What stands for a character, for `str.translate`: a blank for punctuation, blanks around a word of its own."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kind = differing_words.kind_of(character)
        self[code] = " " if kind in ("blank", "mark") else f" {character} " if kind == "alone" else character
        return self[code]


_CHARACTERS = _Characters()


def words_of(text: str) -> list[str]:
    """The words of a text as they are compared."""
    return unicodedata.normalize("NFKC", text).casefold().translate(_CHARACTERS).split()


@dataclasses.dataclass(frozen=True)
class Leaks:
    """What of the texts was found.

    Attributes:
      in_a_row: whether words in a row of each text stand in the corpus, bool `[texts]`.
      whole: whether the text is a line of the corpus, bool `[texts]`.
      is_short: whether it has fewer than SHORTEST words, and was looked for as a line only, bool `[texts]`.
    """

    in_a_row: np.ndarray
    whole: np.ndarray
    is_short: np.ndarray

    @property
    def touched(self) -> np.ndarray:
        """Bool `[texts]`."""
        return self.in_a_row | self.whole

    def part(self, texts: slice) -> "Leaks":
        return Leaks(self.in_a_row[texts], self.whole[texts], self.is_short[texts])

    def by(self, size: int) -> "Leaks":
        """Of each group of `size` texts, such as the two sentences of a pair: whether one of them was found."""
        each = (getattr(self, x.name).reshape(-1, size).any(axis=1) for x in dataclasses.fields(self))
        return Leaks(*each)


class LeakFinder:
    """Looks for texts in documents, which `read` gets some at a time.

    Attributes:
      num_documents, num_words: that were read.
    """

    def __init__(self, texts: Sequence[str]):
        self.num_documents = self.num_words = 0
        words = list(map(words_of, texts))
        self._lines: dict[str, list[int]] = collections.defaultdict(list)
        keys: dict[int, list[np.ndarray]] = collections.defaultdict(list)
        owners: dict[int, list[np.ndarray]] = collections.defaultdict(list)
        for number, of_text in enumerate(words):
            self._lines[" ".join(of_text)].append(number)
            length = min(NGRAM, len(of_text))
            if length >= SHORTEST:
                keys[length].append(_rows_of(_hashes(of_text), length))
                owners[length].append(np.full(len(keys[length][-1]), number))
        self._lines.pop("", None)  # Blank lines are no texts.
        self._tables = {
            length: _Table(np.concatenate(found), np.concatenate(owners[length])) for length, found in keys.items()
        }
        self._is_short = np.array([len(of_text) < SHORTEST for of_text in words], bool)
        self._whole = np.zeros(len(texts), bool)
        self._waiting: list[np.ndarray] = []
        self._num_waiting = 0

    def read(self, documents: Iterable[str]) -> None:
        """Looks in documents; each may have several lines."""
        for document in documents:
            of_document: list[str] = []
            for line in document.splitlines():
                words = words_of(line)
                if (found := self._lines.get(" ".join(words))) is not None:
                    self._whole[found] = True
                of_document += words
            self.num_documents += 1
            self.num_words += len(of_document)
            self._waiting += [_hashes(of_document), _BORDER]
            self._num_waiting += len(of_document)
            if self._num_waiting >= _WORDS_AT_ONCE:
                self._look()

    def result(self) -> Leaks:
        """What was found so far."""
        self._look()
        in_a_row = np.zeros(len(self._whole), bool)
        for table in self._tables.values():
            in_a_row[table.owners_found()] = True
        return Leaks(in_a_row, self._whole.copy(), self._is_short)

    def _look(self) -> None:
        if self._waiting and self._tables:
            words = np.concatenate(self._waiting)
            rows = words
            for length in range(2, max(self._tables) + 1):
                rows = rows[:-1] * _FACTOR + words[length - 1 :]
                if length in self._tables:
                    self._tables[length].look_for(rows)
        self._waiting, self._num_waiting = [], 0


class _Table:
    """The keys of rows of words of one length, and the texts that have them.

    Args:
      keys: uint64 `[rows]`.
      owners: int64 `[rows]`.
    """

    def __init__(self, keys: np.ndarray, owners: np.ndarray):
        self._keys, self._places = np.unique(keys, return_inverse=True)
        self._owners = owners
        self._found = np.zeros(len(self._keys), bool)
        bits = max(8, int(len(self._keys) * _PLACES_OF_A_KEY).bit_length())
        self._shift = np.uint64(64 - bits)
        self._may_be = np.zeros(2**bits, bool)
        self._may_be[self._keys >> self._shift] = True

    def look_for(self, rows: np.ndarray) -> None:
        near = rows[self._may_be[rows >> self._shift]]
        places = np.minimum(np.searchsorted(self._keys, near), len(self._keys) - 1)
        self._found[places[self._keys[places] == near]] = True

    def owners_found(self) -> np.ndarray:
        return self._owners[self._found[self._places]]


def _hashes(words: Sequence[str]) -> np.ndarray:
    """Uint64 `[words]`: the same in every process, which Python's own are not."""
    return np.fromiter((zlib.crc32(word.encode("utf-8", "replace")) for word in words), np.uint64, len(words))


def _rows_of(words: np.ndarray, length: int) -> np.ndarray:
    """Keys of all rows of so many words, uint64 `[rows]`."""
    rows = words
    for i in range(1, length):
        rows = rows[:-1] * _FACTOR + words[i:]
    return rows
