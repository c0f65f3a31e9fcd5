"""The text in which a vocabulary looks for its pieces: SentencePiece's `normalize`, a tokenizer.json's normalizer."""

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from limba.tasks.vocabularies import alphabets
from limba.tasks.vocabularies.tokenizer_files import T5TokenizerVocabulary, TokenizerVocabulary
from limba.tasks.vocabularies.vocabulary import SentencePieceVocabulary, without_tensorflow

_SPACE = "▁"
# What a trained vocabulary may do: as T5's and mT5's, or nothing but make all white space a space.
NORMALIZATIONS: Mapping[str, Callable[[str], str]] = {
    "nfkc": lambda text: alphabets.composed(text, "NFKC"),
    "none": lambda text: text,
}
# Below this share of a text its changes are a trace, such as the dots of an ellipsis.
TRACE = 1e-4
_MOST_SHOWN = 8
# ZWNJ and ZWJ, which divide and join the letters of a word in Persian and Indian languages.
JOINERS = "\u200c\u200d"


def normalized(vocabulary: Any, text: str) -> str:
    """The text as the vocabulary reads it, without blanks at its ends; of other kinds of vocabularies as it is.

    T5's and mT5's turn full-width `，` into `,`. Characters without a piece stay, and nothing is cut.
    """
    vocabulary = without_tensorflow(vocabulary)
    if isinstance(vocabulary, SentencePieceVocabulary):
        return by_sentencepiece(vocabulary.tokenizer, text)
    if isinstance(vocabulary, T5TokenizerVocabulary | TokenizerVocabulary):
        normalizer = vocabulary.tokenizer.normalizer
        return text if normalizer is None else _without_marks(normalizer.normalize_str(text))
    return text


def by_sentencepiece(model: Any, text: str) -> str:
    """The text as a `SentencePieceProcessor` reads it."""
    return _without_marks(model.normalize(text))


def _without_marks(text: str) -> str:
    return text.replace(_SPACE, " ").strip(" ")


def composed_as(read: Callable[[str], str]) -> Callable[[str], str]:
    """Unicode's form NFC, if that is what a vocabulary reads letters with accents apart in, or else the text itself.

    Characters are counted in this form: the first reads no accent that stands apart, the second no composed letter.

    Args:
      read: the text as the vocabulary reads it.
    """
    composes = read("e\u0301") == "\u00e9"
    return alphabets.composed if composes else NORMALIZATIONS["none"]


def changed(normalize: Callable[[str], str], characters: Iterable[str]) -> dict[str, str]:
    """The characters that are read as others, and these."""
    read_as = {character: _read_as(normalize, character) for character in characters}
    return {character: others for character, others in read_as.items() if others != character}


def _read_as(normalize: Callable[[str], str], character: str) -> str:
    """A character between others, as a blank is cut at the end of a text."""
    alone = normalize(character)
    return " " if not alone and normalize(f"a{character}b") == "a b" else alone


def describe(found: Mapping[str, str], counts: Mapping[str, int], trace: float = TRACE) -> str:
    """As "3,000 of 90,000 characters (3.3%), 2 kinds, are read as others: '，' (U+FF0C) as ',' 2,000 times; …".

    "" for no more than a share of `trace`; the joiners of Persian and Indian words are said however rare they are.
    """
    number, total = sum(counts[c] for c in found), sum(counts.values())
    if number <= trace * total:
        found = {c: read_as for c, read_as in found.items() if c in JOINERS}
        number = sum(counts[c] for c in found)
    if not number:
        return ""
    ordered = sorted(found, key=lambda c: (-counts[c], c))
    shown = [f"{_shown(c, found[c])} {counts[c]:,} time{'s' * (counts[c] != 1)}" for c in ordered[:_MOST_SHOWN]]
    more = [f"{len(ordered) - _MOST_SHOWN:,} more kinds"] if len(ordered) > _MOST_SHOWN else []
    kinds = f"{len(ordered):,} kind{'s' * (len(ordered) != 1)}"
    share = f"{number:,} of {total:,} characters ({number / total:.2g} of all), {kinds},"
    are = "is" if number == 1 else "are"
    what = "read as others" if any(found.values()) else "dropped"
    return f"{share} {are} {what}: {'; '.join([*shown, *more])}"


def code_point(character: str) -> str:
    """As U+093F DEVANAGARI VOWEL SIGN I; of a character that stands alone as 'é' (U+00E9)."""
    code = f"U+{ord(character):04X}"
    if unicodedata.category(character)[0] in "LNPS":
        return f"{character!r} ({code})"
    return f"{code} {unicodedata.name(character, '')}".rstrip()


def _shown(character: str, read_as: str) -> str:
    return f"{code_point(character)} as {read_as!r}" if read_as else f"{code_point(character)} dropped"


def without_marks(normalize: Callable[[str], str], characters: Iterable[str]) -> dict[str, str]:
    """The characters that lose a mark, or are one that is dropped, and what is left; case does not matter.

    These are accents, and the vowel signs and points of scripts in which they are letters.
    """
    found = {}
    for character in characters:
        before, after = (unicodedata.normalize("NFD", text.lower()) for text in (character, normalize(character)))
        if sum(map(_is_mark, after)) < sum(map(_is_mark, before)):
            found[character] = unicodedata.normalize("NFC", normalize(character))
    return found


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")
