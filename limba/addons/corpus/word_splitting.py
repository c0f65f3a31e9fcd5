"""Words of a text by datatrove's tokenizers, with spaCy's cache.

datatrove opens one of spaCy's memory zones for each text, in which spaCy caches nothing: it splits each word of each
text as if it were the first. So one spaCy without zones stays for many texts, until it has so many words that another
one takes its place.
"""

import functools
from typing import Any

from datatrove.utils.word_tokenizers import SpaCyTokenizer, WordTokenizer, load_word_tokenizer

# Parts of texts between blanks that are kept; with their words, about 100 MB.
_MOST_PARTS = 200_000


@functools.cache
def of_language(language: str) -> WordTokenizer:
    """The words of a language as datatrove splits them; one object a process, so that blocks share its last text."""
    found = load_word_tokenizer(language)
    if type(found) is SpaCyTokenizer and found.config is None and _is_of_rules(found.language):
        return _Cached(language, found)
    return found


def _is_of_rules(code: str | None) -> bool:
    """Whether spaCy splits by its own rules, not by another package: only then it has a cache."""
    import spacy
    from spacy.tokenizer import Tokenizer

    return type(spacy.blank(code).tokenizer) is Tokenizer


def _named(language: str) -> WordTokenizer:
    return of_language(language)  # dill, for SLURM, would copy the cache of functools with its function.


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
        self.split = self.vocabulary.tokenizer
        self.split.max_cache_size = _MOST_PARTS
        self.parts: set[str] = set()
        self.texts: dict[int, str] = {}

    def word_tokenize(self, text: str) -> list[str]:
        """The words, without blanks."""
        if text != self.last[0]:
            self.last = (text, self._words(text))
        return [*self.last[1]]

    def _words(self, text: str) -> list[str]:
        from spacy.attrs import ORTH

        new = {part for part in text.split() if part not in self.parts}
        if len(self.parts) + len(new) > _MOST_PARTS:
            self.renew()
            new = set(text.split())
        # From a text's first abbreviation on, spaCy caches no part of it; alone, parts are cached.
        for part in new:
            self.split(part)
        found = self.split(text).to_array(ORTH).tolist()
        self.parts |= new
        strings = self.vocabulary.vocab.strings
        for word in set(found).difference(self.texts):
            self.texts[word] = strings[word].strip()
        return [text for word in found if (text := self.texts[word])]

    def sent_tokenize(self, text: str) -> list[str]:
        """datatrove's own."""
        return self.plain.sent_tokenize(text)

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """datatrove's own."""
        return self.plain.span_tokenize(text)
