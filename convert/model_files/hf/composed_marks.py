"""Letters and their marks in a tokenizer.json: composed where SentencePiece composes them, in the order of the text.

SentencePiece finds letters with marks in a table of sequences: a letter apart from all its marks, in Unicode's order.
The tokenizers library looks the same table up by graphemes. It finds no sequence of more than 5 bytes, such as a
Japanese letter and its mark, and leaves out what stands behind the first part that it finds. Unicode's form NFC
composes what the library does not find. By itself it does too much: it changes the order of marks, as of a shadda and a
vowel in Arabic, and composes ê and an accent, as many Vietnamese texts have them.
"""

import collections
import functools
import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# No text has this code point: Unicode keeps it for programs.
_BETWEEN = "\ufdd0"
_COMPOSE = {"type": "NFC"}


def steps(precompiled: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The normalizers in place of the library's `Precompiled`, for a table that has all composed letters."""
    return [
        {"type": "Replace", "pattern": {"Regex": _apart()}, "content": _BETWEEN},
        _COMPOSE,
        dict(precompiled),
        _COMPOSE,  # of half-width kana, which the table makes letters with a mark
        {"type": "Replace", "pattern": {"String": _BETWEEN}, "content": ""},
    ]


def is_one(step: Mapping[str, Any]) -> bool:
    """Whether a normalizer is one of `steps` beside the table."""
    return step in steps({})


@functools.cache
def _apart() -> str:
    """Where a mark stands behind something with which no sequence of SentencePiece's table has it."""
    composed, bases, following = set(), set(), collections.defaultdict(set)
    for letter in _composed():
        first, *marks = [*unicodedata.normalize("NFD", letter)]
        parts = [first, *marks] if _is_mark(first) else marks
        for mark, other in itertools.pairwise(parts):
            following[mark].add(other)
        if not _is_mark(letter):
            composed.add(letter)
            bases.add(first)
    others = {base for base in bases if not unicodedata.category(base).startswith("L")}
    behind = rf"(?<=[\p{{M}}{_ranges(composed)}])|(?<=[^\p{{L}}\p{{M}}{_ranges(others)}])"
    known = "|".join(f"(?<={_escaped(mark)})[{_ranges(following[mark])}]" for mark in sorted(following))
    return rf"(?:{behind})(?=\p{{M}})(?!{known})"


def _composed() -> Iterator[str]:
    """The letters that are one character in NFC and several in NFD, but for Korean ones, which have no marks."""
    for letter in map(chr, range(0xC0, 0x3100)):
        apart = unicodedata.normalize("NFD", letter)
        if apart != letter and unicodedata.normalize("NFC", apart) == letter:
            yield letter


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _ranges(characters: Iterable[str]) -> str:
    """Characters as the inside of a class of a regular expression."""
    found: list[list[str]] = []
    for character in sorted(characters):
        if found and ord(character) == ord(found[-1][1]) + 1:
            found[-1][1] = character
        else:
            found.append([character, character])
    return "".join(_escaped(a) if a == b else f"{_escaped(a)}-{_escaped(b)}" for a, b in found)


def _escaped(character: str) -> str:
    return rf"\x{{{ord(character):x}}}"
