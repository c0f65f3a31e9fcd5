"""The tokens of a text, and the characters that each of them stands for."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from limba.tasks.vocabularies.tokenizer_files import T5TokenizerVocabulary, TokenizerVocabulary
from limba.tasks.vocabularies.vocabulary import ByteVocabulary, SentencePieceVocabulary, without_tensorflow


class TokenSpans(NamedTuple):
    """The ids of a text, without EOS and special tokens, and of each the characters `[begin, end)` of the text.

    A token may stand for no character, and that of a word for the blank before it, too.
    """

    ids: list[int]
    spans: list[tuple[int, int]]


def encode(vocabulary: Any, texts: Sequence[str]) -> list[TokenSpans]:
    """The tokens of texts, those of `vocabulary.encode`.

    Raises:
      ValueError: for a vocabulary of another class, which does not say what its tokens stand for.
    """
    vocabulary = without_tensorflow(vocabulary)
    if isinstance(vocabulary, ByteVocabulary):
        return [_of_bytes(vocabulary, text) for text in texts]
    if isinstance(vocabulary, SentencePieceVocabulary):
        return [_of_pieces(vocabulary, text) for text in texts]
    if isinstance(vocabulary, TokenizerVocabulary | T5TokenizerVocabulary):
        found = vocabulary.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [TokenSpans(x.ids, x.offsets) for x in found]
    raise ValueError(
        f"{type(vocabulary).__name__} does not say which characters its tokens stand for: give a SentencePiece model, "
        "a tokenizer.json or a ByteVocabulary."
    )


def _of_bytes(vocabulary: ByteVocabulary, text: str) -> TokenSpans:
    spans = [(i, i + 1) for i, character in enumerate(text) for _ in character.encode()]
    return TokenSpans(list(vocabulary.encode(text)), spans)


def _of_pieces(vocabulary: SentencePieceVocabulary, text: str) -> TokenSpans:
    from sentencepiece import sentencepiece_pb2

    serialized = vocabulary.tokenizer.encode(text, out_type="serialized_proto")
    pieces = sentencepiece_pb2.SentencePieceText.FromString(serialized).pieces
    # Of each byte, and of the end, its character.
    character = np.repeat(np.arange(len(text) + 1), [*(len(x.encode()) for x in text), 1]).tolist()
    return TokenSpans([x.id for x in pieces], [(character[x.begin], character[x.end]) for x in pieces])
