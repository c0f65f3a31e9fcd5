"""Which ids of a vocabulary are text, by what vocabularies of SeqIO's and of ours have in common."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from limba.data import sentinels


def is_text(vocab_size: int, special_ids: Iterable[int | None]) -> np.ndarray:
    """All ids but padding, which is 0, and the special ones: bool `[vocab_size]`."""
    text = np.ones(vocab_size, bool)
    text[[0, *(id_ for id_ in special_ids if id_ is not None)]] = False
    return text


def of_vocabulary(vocabulary: Any, rows: int) -> np.ndarray:
    """Which rows of a table of embeddings are text, bool `[rows]`: no padding, EOS, sentinel or BERT's special token.

    Unknown pieces are text. Rows behind the vocabulary, which round its size up, are not.
    """
    size = min(int(vocabulary.vocab_size), rows)
    special = {vocabulary.eos_id, *getattr(vocabulary, "special_ids", ()), *sentinels.of_vocabulary(vocabulary)}
    text = is_text(size, (id_ for id_ in special if id_ is not None and id_ < size))
    return np.pad(text, (0, rows - size))
