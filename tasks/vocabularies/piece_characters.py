"""What text the pieces of a vocabulary stand for, and how many characters: what two vocabularies compare by."""

import re
from typing import Any

import numpy as np

from limba.data import text_pieces
from limba.tasks.vocabularies.tokenizer_files import T5TokenizerVocabulary, TokenizerVocabulary
from limba.tasks.vocabularies.vocabulary import ByteVocabulary, SentencePieceVocabulary, without_tensorflow

_BYTE = re.compile("<0x[0-9A-F]{2}>")


def texts_of(vocabulary: Any) -> list[bytes] | None:
    """The text of each piece in UTF-8, with a blank where a word begins; None for a kind whose pieces are not known.

    It is empty of special tokens, sentinels, tokens that were added, and unknown pieces.
    """
    vocabulary = without_tensorflow(vocabulary)
    texts = [b""] * vocabulary.vocab_size
    if isinstance(vocabulary, ByteVocabulary):
        texts[3:259] = [bytes([byte]) for byte in range(256)]
    elif isinstance(vocabulary, SentencePieceVocabulary):
        model = vocabulary.tokenizer
        for id_ in range(model.get_piece_size()):
            texts[id_] = _text(model.id_to_piece(id_), model.is_byte(id_))
    elif isinstance(vocabulary, TokenizerVocabulary | T5TokenizerVocabulary):
        tokenizer = vocabulary.tokenizer
        added = tokenizer.get_added_tokens_decoder()
        is_word_piece = type(tokenizer.model).__name__ in ("WordPiece", "WordLevel")
        bytes_of = {character: byte for byte, character in byte_level_alphabet().items()}
        is_bytes = '"ByteLevel"' in tokenizer.to_str()
        for piece, id_ in tokenizer.get_vocab().items():
            if id_ in added:
                continue
            if is_bytes:
                texts[id_] = bytes(bytes_of[character] for character in piece if character in bytes_of)
            elif is_word_piece and not _BYTE.fullmatch(piece):
                texts[id_] = piece[2:].encode() if piece.startswith("##") else f" {piece}".encode()
            else:
                texts[id_] = _text(piece, _BYTE.fullmatch(piece) is not None)
    else:
        return None
    is_text = text_pieces.of_vocabulary(vocabulary, len(texts))
    if vocabulary.unk_id is not None:
        is_text[vocabulary.unk_id] = False
    return [text if known else b"" for text, known in zip(texts, is_text, strict=True)]


def _text(piece: str, is_byte: bool) -> bytes:
    return bytes([int(piece[3:5], 16)]) if is_byte else piece.replace("▁", " ").encode()


def of_vocabulary(vocabulary: Any) -> np.ndarray | None:
    """Characters of each piece, int64 `[vocab_size]`; None for a kind of vocabulary whose pieces are not known.

    A blank is a character, also one that only a piece's mark stands for. Of the bytes of a character only the first
    counts, and of an unknown piece one. Special tokens and sentinels have none.
    """
    if (texts := texts_of(vocabulary)) is None:
        return None
    # The first byte of a character is none of those that continue one (RFC 3629).
    begins = np.frombuffer(b"".join(texts), np.uint8) & 0b1100_0000 != 0b1000_0000
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    before, ends = np.concatenate([[0], np.cumsum(begins)]), np.cumsum(lengths)
    characters = before[ends] - before[ends - lengths]
    if (unk_id := without_tensorflow(vocabulary).unk_id) is not None:
        characters[unk_id] = 1
    return characters


def byte_level_alphabet() -> dict[int, str]:
    """The characters that byte-level BPE writes bytes as: printable ones of Latin-1 stay, others follow from 256 on."""
    stay = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(stay)]
    return {byte: chr(byte) for byte in stay} | {byte: chr(256 + place) for place, byte in enumerate(others)}
