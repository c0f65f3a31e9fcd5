"""The characters of texts: which of them a vocabulary keeps, and which it does not know."""

import bisect
import collections
import dataclasses
import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

# Of the characters of a text, those that are kept whatever they are.
FREQUENT = 0.9995
# What languages are written with: letters, accents, numbers, punctuation, signs of money and of mathematics; the
# joiners of Persian and Indian ones; and the two signs of every keyboard that Unicode has among its modifiers.
_CATEGORIES = ("L", "M", "N", "P", "Sc", "Sm")
_OTHERS = "\u200c\u200d^`"
# A character that is rarer than that is noise: from 200 MB of text on, one that is seen once.
_RAREST = 1e-8
# The letters of a smaller script are kept wherever they occur, those of a larger one, such as Chinese, in its own text.
_SMALL_SCRIPT, _LARGE_SCRIPT, _OWN_SHARE = 500, 4000, 0.01
_CHUNK = 1 << 20
_MARGIN = 20
# Half of a pair, which is no character, so that a line break between two texts is none of theirs.
_BETWEEN_TEXTS = "\ud800"
# Accents on one letter. What stands behind them is no text, and Unicode's forms sort accents in n² steps.
_MOST_MARKS, _SHORT = 64, 1024


def composed(text: str, form: Literal["NFC", "NFKC"] = "NFC") -> str:
    """Unicode's form of a text, in time that follows from its length; accents behind 64 on one letter stand alone."""
    if len(text) <= _SHORT or text.isascii() or not _has_many_marks(text):
        return unicodedata.normalize(form, text)
    between = re.compile(f"(?<=[{_marks()}]{{{_MOST_MARKS}}})(?=[{_marks()}])")
    return "".join(unicodedata.normalize(form, part) for part in between.split(text))


def _has_many_marks(text: str) -> bool:
    is_mark = np.isin(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32), _codes_of_marks())
    until = np.cumsum(is_mark)
    return bool((until[_MOST_MARKS:] - until[:-_MOST_MARKS] == _MOST_MARKS).any())


@functools.cache
def _marks() -> str:
    return "".join(filter(unicodedata.combining, map(chr, range(sys.maxunicode + 1))))


@functools.cache
def _codes_of_marks() -> np.ndarray:
    return np.array([*map(ord, _marks())], np.uint32)


class Characters:
    """How often each character is in texts, and where it was first.

    Args:
      normalize: what a vocabulary makes of a text before it is cut into pieces.
    """

    def __init__(self, normalize: Callable[[str], str] = composed):
        self._normalize = normalize
        self._counts = np.zeros(0, np.int64)  # up to the largest code that has come
        self._examples: dict[str, str] = {}
        self._waiting: list[tuple[str, str]] = []
        self._size = 0

    def add(self, text: str, place: str = "") -> None:
        """Counts the characters of a text; `place` says where it is, such as "file, row 3"."""
        self._waiting.append((text, place))
        self._size += len(text) + 1
        if self._size > _CHUNK:
            self._count()

    @property
    def counts(self) -> dict[str, int]:
        """The number of each character, of white space and control characters none."""
        return {c: n for c, n in self._all_counts().items() if not _is_other(c)}

    @property
    def other_counts(self) -> dict[str, int]:
        """The number of each character of white space, control character and character of private use."""
        return {c: n for c, n in self._all_counts().items() if _is_other(c)}

    def _all_counts(self) -> dict[str, int]:
        self._count()
        found = {chr(code): int(self._counts[code]) for code in np.flatnonzero(self._counts)}
        return {c: n for c, n in found.items() if unicodedata.category(c) != "Cs"}

    def example(self, character: str) -> str:
        """The place where it was first, and what is around it."""
        return self._examples[character]

    def _count(self) -> None:
        if not self._waiting:
            return
        texts = [self._normalize(text) for text, _ in self._waiting]
        joined = _BETWEEN_TEXTS.join(texts)
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
        counts = np.bincount(codes, minlength=len(self._counts))
        self._counts = np.pad(self._counts, (0, len(counts) - len(self._counts)))
        begins = list(itertools.accumulate((len(text) + 1 for text in texts), initial=0))
        for code in np.flatnonzero((counts > 0) & (self._counts == 0)):
            at = joined.find(chr(code))
            number = min(bisect.bisect(begins, at), len(texts)) - 1
            at -= begins[number]
            around = " ".join(texts[number][max(0, at - _MARGIN) : at + _MARGIN].split())
            place = self._waiting[number][1]
            self._examples[chr(code)] = f"{place}: {around!r}" if place else repr(around)
        self._counts += counts
        self._waiting, self._size = [], 0


def _is_other(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) in ("Cc", "Co")


def alphabet(counts: Mapping[str, int], coverage: float | None) -> list[str]:
    """The characters that a vocabulary keeps, sorted.

    Args:
      coverage: the share of the text that the most frequent ones make up; None keeps whole alphabets.
    """
    kept = _most_frequent(counts, FREQUENT if coverage is None else coverage)
    return sorted(kept if coverage is not None else kept | _of_languages(counts))


def _most_frequent(counts: Mapping[str, int], coverage: float) -> set[str]:
    left, kept = coverage * sum(counts.values()), set()
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if left <= 0:
            break
        kept.add(character)
        left -= count
    return kept


def _of_languages(counts: Mapping[str, int]) -> set[str]:
    total = sum(counts.values())
    scripts = collections.defaultdict(list)
    for character, count in counts.items():
        if count >= total * _RAREST and is_of_languages(character):
            scripts[script_of(character)].append(character)
    kept: set[str] = set()
    for letters in scripts.values():
        is_own = sum(counts[letter] for letter in letters) >= _OWN_SHARE * total
        if len(letters) <= (_LARGE_SCRIPT if is_own else _SMALL_SCRIPT):
            kept.update(letters)
    return kept


def is_of_languages(character: str) -> bool:
    """Whether it is no symbol, emoji or control character."""
    return unicodedata.category(character).startswith(_CATEGORIES) or character in _OTHERS


def script_of(character: str) -> str:
    """The first word of a character's name, which is the script of a letter: LATIN, CYRILLIC, CJK, HANGUL …"""
    return unicodedata.name(character, "").partition(" ")[0]


Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]


def unknown(encode: Encode, unk_id: int | None, characters: Iterable[str]) -> list[str]:
    """The characters that a vocabulary does not know, at the beginning of a word or inside of one.

    `encode` gives the ids of texts, `unk_id` stands for what is unknown; None if every text has ids.
    """
    given = list(characters)
    if unk_id is None or unk_id < 0 or not given:
        return []
    found = encode([character * 2 for character in given])
    return [character for character, ids in zip(given, found, strict=True) if unk_id in ids]


@dataclasses.dataclass(frozen=True)
class Unknown:
    """The characters of a text that a vocabulary does not know.

    Attributes:
      found: letters, signs and all others that `Characters.counts` counts.
      others: white space, control characters and those of private use, such as U+0080 of broken UTF-8.
      characters: those of the text.
    """

    found: tuple[str, ...]
    others: tuple[str, ...]
    characters: Characters

    @functools.cached_property
    def counts(self) -> dict[str, int]:
        """How often the text has each of them."""
        counts, others = self.characters.counts, self.characters.other_counts
        return {c: counts[c] for c in self.found} | {c: others[c] for c in self.others}

    @property
    def number(self) -> int:
        """How often the text has one of them."""
        return sum(self.counts.values())

    @property
    def share(self) -> float:
        """Their share of the text; white space that is known does not count."""
        known = sum(n for c, n in self.characters.other_counts.items() if not c.isspace() and c not in self.counts)
        number = sum(self.counts[c] for c in self.others)
        return self.number / max(sum(self.characters.counts.values()) + known + number, 1)

    def describe(self, are: str, others_are: str) -> Iterator[str]:
        """A line for either kind that there is, behind what they are called."""
        if self.found:
            yield f"{are}: {describe(self.found, self.characters)}"
        if self.others:
            yield f"{others_are}: {describe_others(self.others, self.characters)}"


def unknown_of(encode: Encode, unk_id: int | None, characters: Characters) -> Unknown:
    """The characters of a text that a vocabulary does not know; see `unknown`."""
    found, others = (tuple(unknown(encode, unk_id, x)) for x in (characters.counts, characters.other_counts))
    return Unknown(found, others, characters)


def describe(found: Iterable[str], characters: Characters, most: int = 5) -> str:
    """As "3 characters, 12 of 4,000 (0.003 of all): 'Ю' 8 times, first in 'Югославія'; …", frequent ones first."""
    counts = characters.counts
    ordered = sorted(found, key=lambda c: (-counts[c], c))
    number, total = sum(counts[c] for c in ordered), sum(counts.values())
    shown = _shown(ordered, counts, characters, most)
    kinds = f"{len(ordered):,} character{'s' if len(ordered) > 1 else ''}"
    return f"{kinds}, {number:,} of {total:,} ({number / total:.2g} of all): {shown}"


def describe_others(found: Iterable[str], characters: Characters, most: int = 5) -> str:
    """White space and control characters as "'\\x80' 3 times, first in 'Югосла\\x80вія'; …", frequent ones first."""
    counts = characters.other_counts
    return _shown(sorted(found, key=lambda c: (-counts[c], c)), counts, characters, most)


def _shown(ordered: Sequence[str], counts: Mapping[str, int], characters: Characters, most: int) -> str:
    times = [f"{counts[c]:,} time{'s' * (counts[c] != 1)}" for c in ordered[:most]]
    shown = [f"{c!r} {n}, first in {characters.example(c)}" for c, n in zip(ordered, times, strict=False)]
    return "; ".join([*shown, "…"] if len(ordered) > most else shown)


def say_left_out(encode: Encode, unk_id: int | None, characters: Characters, remedy: str) -> None:
    """Prints which characters of its training text a vocabulary does not know."""
    for line in unknown_of(encode, unk_id, characters).describe("left out", "other characters that are left out"):
        print(f"{line}. --character_coverage 1.0 keeps all. {remedy}", file=sys.stderr)
