"""The text in which a vocabulary looks for its pieces: SentencePiece's `normalize`, a tokenizer.json's normalizer."""

from typing import Any

from tasks.vocabularies.tokenizer_files import T5TokenizerVocabulary, TokenizerVocabulary
from tasks.vocabularies.vocabulary import SentencePieceVocabulary, without_tensorflow

_SPACE = "▁"


def normalized(vocabulary: Any, text: str) -> str:
    """The text as the vocabulary reads it, without blanks at its ends; of other kinds of vocabularies as it is.

    T5's and mT5's turn full-width `，` into `,`. Characters without a piece stay, and nothing is cut.
    """
    vocabulary = without_tensorflow(vocabulary)
    if isinstance(vocabulary, SentencePieceVocabulary):
        changed = vocabulary.tokenizer.normalize(text)
    elif isinstance(vocabulary, T5TokenizerVocabulary | TokenizerVocabulary):
        normalizer = vocabulary.tokenizer.normalizer
        if normalizer is None:
            return text
        changed = normalizer.normalize_str(text)
    else:
        return text
    return changed.replace(_SPACE, " ").strip(" ")
