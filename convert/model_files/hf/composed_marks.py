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
from collections.abc import Mapping
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
    is_mark = lambda character: unicodedata.category(character).startswith("M")  # noqa: E731
    composed, bases, following = set(), set(), collections.defaultdict(set)
    for letter in map(chr, range(0xC0, 0x3100)):  # Korean letters, which are behind, have no marks.
        apart = unicodedata.normalize("NFD", letter)
        if apart == letter or unicodedata.normalize("NFC", apart) != letter:
            continue
        for mark, other in itertools.pairwise(apart if is_mark(apart[0]) else apart[1:]):
            following[mark].add(other)
        if not is_mark(letter):
            composed.add(letter)
            bases.add(apart[0])
    others = {base for base in bases if not unicodedata.category(base).startswith("L")}
    behind = rf"(?<=[\p{{M}}{''.join(sorted(composed))}])|(?<=[^\p{{L}}\p{{M}}{''.join(sorted(others))}])"
    known = "|".join(f"(?<={mark})[{''.join(sorted(following[mark]))}]" for mark in sorted(following))
    return rf"(?:{behind})(?=\p{{M}})(?!{known})"
