"""When two vocabularies are the same: they give every text the same ids, whatever their files are."""

from typing import Any

from limba.tasks.vocabularies.tokenizer_files import T5TokenizerVocabulary, TokenizerVocabulary
from limba.tasks.vocabularies.vocabulary import SentencePieceVocabulary, without_tensorflow


def same_vocabulary(a: Any, b: Any) -> bool:
    """Whether two vocabularies give the same ids; files are compared by pieces, scores, types and normalization."""
    a, b = without_tensorflow(a), without_tensorflow(b)
    if a == b:
        return True
    has_file = isinstance(a, SentencePieceVocabulary | TokenizerVocabulary | T5TokenizerVocabulary)
    return has_file and type(a) is type(b) and a.digest == b.digest
