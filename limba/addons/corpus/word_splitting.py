"""Words of a text by datatrove's tokenizers, with spaCy's cache.

datatrove opens one of spaCy's memory zones for each text, in which spaCy caches nothing: it splits each word of each
text as if it were the first. So one spaCy without zones stays for many texts, until it has so many words that another
one takes its place.

Blocks that compare texts simplify them first, each for itself and letter by letter. Here they are given words of the
simplified text, and settings that leave a text as it is.
"""

import functools
import unicodedata
from typing import Any

from datatrove.utils.text import TextNormConfig, simplify_text
from datatrove.utils.word_tokenizers import SpaCyTokenizer, WordTokenizer, load_word_tokenizer

# Parts of texts between blanks that are kept; with their words, about 100 MB.
_MOST_PARTS = 200_000
# For a block that has the words `of_simplified`.
AS_IT_IS = TextNormConfig(
    lowercase=False,
    norm_whitespace=False,
    remove_punctuation=False,
    norm_unicode_diacritics=False,
    norm_numbers=False,
)
_WITH_MARKS = TextNormConfig(norm_unicode_diacritics=False)


@functools.cache
def of_language(language: str) -> WordTokenizer:
    """The words of a language as datatrove splits them; one object a process, so that blocks share its last text."""
    found = load_word_tokenizer(language)
    if type(found) is SpaCyTokenizer and found.config is None and _is_of_rules(found.language):
        return _Cached(language, found)
    return found


@functools.cache
def of_simplified(language: str) -> WordTokenizer:
    """The words of a text that datatrove's `simplify_text` has simplified."""
    return _Simplified(language, of_language(language))


def _is_of_rules(code: str | None) -> bool:
    """Whether spaCy splits by its own rules, not by another package: only then it has a cache."""
    import spacy
    from spacy.tokenizer import Tokenizer

    return type(spacy.blank(code).tokenizer) is Tokenizer


# dill, for SLURM, would copy the cache of functools with its function.
def _named(language: str) -> WordTokenizer:
    return of_language(language)


def _named_simplified(language: str) -> WordTokenizer:
    return of_simplified(language)


class _Texts(dict[int, str]):
    """Words by spaCy's numbers."""

    def __init__(self, strings: Any) -> None:
        super().__init__()
        self.strings = strings

    def __missing__(self, number: int) -> str:
        text: str = self.strings[number].strip()
        self[number] = text
        return text


class _Cached(WordTokenizer):
    """The same words as datatrove's `SpaCyTokenizer`."""

    def __init__(self, name: str, plain: SpaCyTokenizer) -> None:
        super().__init__(plain.language)
        self.name, self.plain = name, plain
        self.last: tuple[str, list[str]] = ("", [])
        self.renew()

    def __reduce__(self) -> Any:
        """Copies of a pipeline are by name: a spaCy is neither copied nor sent to a job."""
        return _named, (self.name,)

    def renew(self) -> None:
        """Forgets all parts: spaCy has no other way to give memory back."""
        import spacy

        self.vocabulary = spacy.blank(self.language)
        # What spaCy finds out about each new word, as its shape, is two fifths of what the word costs.
        self.vocabulary.vocab.lex_attr_getters = {}
        self.split = self.vocabulary.tokenizer
        self.split.max_cache_size = _MOST_PARTS
        self.parts: set[str] = set()
        self.texts = _Texts(self.vocabulary.vocab.strings)

    def word_tokenize(self, text: str) -> list[str]:
        """The words, without blanks."""
        if text != self.last[0]:
            self.last = (text, self._words(text))
        return [*self.last[1]]

    def _words(self, text: str) -> list[str]:
        from spacy.attrs import ORTH

        new = set(text.split()).difference(self.parts)
        if len(self.parts) + len(new) > _MOST_PARTS:
            self.renew()
            new = set(text.split())
        # From a text's first abbreviation on, spaCy caches no part of it; alone, parts are cached.
        for part in new:
            self.split(part)
        found = self.split(text).to_array(ORTH).tolist()
        self.parts |= new
        return [*filter(None, map(self.texts.__getitem__, found))]

    def sent_tokenize(self, text: str) -> list[str]:
        """datatrove's own."""
        return self.plain.sent_tokenize(text)

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """datatrove's own."""
        return self.plain.span_tokenize(text)


class _Simplified(WordTokenizer):
    """Words of the simplified text, for blocks with the settings `AS_IT_IS`."""

    def __init__(self, name: str, plain: WordTokenizer) -> None:
        super().__init__(plain.language)
        self.name, self.plain = name, plain
        self.last: tuple[str, list[str]] = ("", [])

    def __reduce__(self) -> Any:
        """As above."""
        return _named_simplified, (self.name,)

    def word_tokenize(self, text: str) -> list[str]:
        """The words, without blanks."""
        if text != self.last[0]:
            self.last = (text, self.plain.word_tokenize(_simplified(text)))
        return [*self.last[1]]

    def sent_tokenize(self, text: str) -> list[str]:
        """Of the text as it is."""
        return self.plain.sent_tokenize(text)

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Of the text as it is."""
        return self.plain.span_tokenize(text)


def _simplified(text: str) -> str:
    """As `simplify_text`, which asks of each letter whether it is a mark."""
    text = unicodedata.normalize("NFD", simplify_text(text, _WITH_MARKS))
    for character in set(text):
        if unicodedata.category(character) == "Mn":
            text = text.replace(character, "")
    return text.strip()
