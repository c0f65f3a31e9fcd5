"""The tokens of a CTranslate2 folder by id: the engine takes and gives tokens, and looks for their ids itself."""

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from limba.convert.model_files.hf.hf_tokenizer import SPECIAL_TOKENS, Tokenizer
from limba.files.untrusted_files import shown_list

_MOST_BYTES = 256


def of_t5(tokenizer: Tokenizer, num_rows: int) -> list[str]:
    """One for each row of the embedding; rows beyond the vocabulary are `<unused_0>` …

    Bytes are the characters of these numbers, as in transformers' ByT5Tokenizer.

    Raises:
      ValueError: if two ids have the same token: the engine would take one of them for both.
    """
    tokens = _pieces(tokenizer)
    for id_, token in tokenizer.special_tokens.items():
        tokens[id_] = token
    tokens += [f"<unused_{i}>" for i in range(num_rows - len(tokens))]
    return unique(tokens, str(tokenizer.model_file or "the bytes"))


def of_json(file: Path, num_rows: int) -> list[str]:
    """Those of an encoder's tokenizer.json; rows of the embedding that have no token are `<unused_0>` …"""
    from limba.tasks.vocabularies import TokenizerVocabulary

    tokenizer = TokenizerVocabulary(str(file)).tokenizer
    found = [tokenizer.id_to_token(id_) for id_ in range(num_rows)]
    number = itertools.count()
    return unique([f"<unused_{next(number)}>" if token is None else token for token in found], str(file))


def unique(tokens: list[str], where: str) -> list[str]:
    """The tokens. Raises ValueError if one is there twice."""
    twice = [token for token, count in Counter(tokens).items() if count > 1]
    if twice:
        raise ValueError(
            f"The vocabulary {where} has several ids for {shown_list(twice)}. CTranslate2 knows tokens by their text, "
            "so it cannot tell these ids apart."
        )
    return tokens


def _pieces(tokenizer: Tokenizer) -> list[str]:
    """The tokens before the sentinels, with places for these."""
    if tokenizer.model_file is None:
        pieces: Sequence[Any] = [*SPECIAL_TOKENS, *map(chr, range(_MOST_BYTES))]
    elif tokenizer.model is not None:
        from sentencepiece import sentencepiece_model_pb2

        pieces = [piece.piece for piece in sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model).pieces]
    else:
        from limba.tasks.vocabularies import T5TokenizerVocabulary

        opened = T5TokenizerVocabulary(str(tokenizer.model_file)).tokenizer
        pieces = [opened.id_to_token(id_) for id_ in range(tokenizer.num_pieces)]
    return [*pieces, *("" for _ in range(tokenizer.vocab_size - len(pieces)))]
