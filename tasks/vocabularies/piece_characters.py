"""How many characters the pieces of a vocabulary stand for: what losses per token of two vocabularies compare by."""

import re
from typing import Any

import numpy as np

from limba.data import text_pieces
from limba.tasks.vocabularies.tokenizer_files import T5TokenizerVocabulary, TokenizerVocabulary
from limba.tasks.vocabularies.vocabulary import ByteVocabulary, SentencePieceVocabulary, without_tensorflow

BYTE = re.compile("<0x[0-9A-F]{2}>")
_KNOWN = ByteVocabulary | SentencePieceVocabulary | TokenizerVocabulary | T5TokenizerVocabulary


def of_vocabulary(vocabulary: Any) -> np.ndarray | None:
    """Characters of each piece, int64 `[vocab_size]`; None for a kind of vocabulary whose pieces are not known.

    A blank is a character, also one that only a piece's mark stands for. Of the bytes of a character only the first
    counts, and of an unknown piece one. Special tokens and sentinels have none.
    """
    vocabulary = without_tensorflow(vocabulary)
    if not isinstance(vocabulary, _KNOWN):
        return None
    characters = np.zeros(vocabulary.vocab_size, np.int64)
    if isinstance(vocabulary, ByteVocabulary):
        characters[3:259] = [_begins_character(byte) for byte in range(256)]
    elif isinstance(vocabulary, SentencePieceVocabulary):
        model = vocabulary.tokenizer
        for id_ in range(model.get_piece_size()):
            piece = model.id_to_piece(id_)
            if model.is_byte(id_):
                characters[id_] = _begins_character(int(piece[3:5], 16))
            else:
                characters[id_] = len(piece)
    else:
        tokenizer = vocabulary.tokenizer
        added = tokenizer.get_added_tokens_decoder()
        is_bytes = '"ByteLevel"' in tokenizer.to_str()
        is_word_piece = type(tokenizer.model).__name__ in ("WordPiece", "WordLevel")
        for piece, id_ in tokenizer.get_vocab().items():
            if id_ in added:
                continue
            if is_bytes:
                characters[id_] = sum(character not in _CONTINUATIONS for character in piece)
            elif BYTE.fullmatch(piece):
                characters[id_] = _begins_character(int(piece[3:5], 16))
            elif is_word_piece:
                characters[id_] = len(piece) - 2 if piece.startswith("##") else len(piece) + 1
            else:
                characters[id_] = len(piece)
    if vocabulary.unk_id is not None:
        characters[vocabulary.unk_id] = 1
    return np.where(text_pieces.of_vocabulary(vocabulary, len(characters)), characters, 0)


def _begins_character(byte: int) -> bool:
    """Whether a byte of UTF-8 is the first of its character (RFC 3629)."""
    return byte & 0b1100_0000 != 0b1000_0000


def byte_level_alphabet() -> dict[int, str]:
    """The characters that byte-level BPE writes bytes as: printable ones of Latin-1 stay, others follow from 256 on."""
    stay = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(stay)]
    return {byte: chr(byte) for byte in stay} | {byte: chr(256 + place) for place, byte in enumerate(others)}


_CONTINUATIONS = {character for byte, character in byte_level_alphabet().items() if not _begins_character(byte)}
