"""Vocabularies with SeqIO's interface, and training and checking them.

The rooms of `tasks` above `registry` may import it. gin files and task modules use these names.
"""

from limba.tasks.vocabularies.equality import same_vocabulary
from limba.tasks.vocabularies.tokenizer_files import T5TokenizerVocabulary, TokenizerVocabulary
from limba.tasks.vocabularies.vocabulary import (
    ByteVocabulary,
    LabelVocabulary,
    MultiLabelVocabulary,
    NumberVocabulary,
    PassThroughVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
    without_tensorflow,
)

__all__ = [
    "ByteVocabulary",
    "LabelVocabulary",
    "MultiLabelVocabulary",
    "NumberVocabulary",
    "PassThroughVocabulary",
    "SentencePieceVocabulary",
    "T5TokenizerVocabulary",
    "TokenizerVocabulary",
    "Vocabulary",
    "same_vocabulary",
    "without_tensorflow",
]
