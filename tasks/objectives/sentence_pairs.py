"""Rows of two segments, A and B, of which B follows A or does not. NumPy only."""

from typing import NamedTuple

import numpy as np

from limba.tasks.objectives.objective import random_keys, random_uniform

NEXT_SENTENCE, SENTENCE_ORDER = "next_sentence", "sentence_order"
KINDS = (NEXT_SENTENCE, SENTENCE_ORDER)
# Not 0, which is padding.
FOLLOWS, DOES_NOT_FOLLOW = 1, 2
# Those of masking are 0 to 2.
_CUT, _LABEL, _OTHER = 3, 4, 5


class Pairs(NamedTuple):
    """Rows of A and B, without special tokens.

    Attributes:
      tokens: int32 `[batch, length]`, padded with 0.
      lengths: `[batch]`, the tokens of A and B.
      border: `[batch]`, the tokens of A.
      labels: `[batch]`, FOLLOWS or DOES_NOT_FOLLOW.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    border: np.ndarray
    labels: np.ndarray


def arrange(
    kind: str, tokens: np.ndarray, lengths: np.ndarray, seeds: np.ndarray, continues_word: np.ndarray | None
) -> Pairs:
    """Makes pairs of windows: each is cut between a third and two thirds of its tokens.

    Where the vocabulary knows where words begin, each segment begins with a word: half a word would show what is in
    front of it.

    - next_sentence (arXiv:1810.04805, section 3.1): half of the rows get the end of another window as B, of the same
      length as their own. A row keeps its own B if the other window is too short, or if there is no other.
    - sentence_order (arXiv:1909.11942, section 3.1): half of the rows have both parts in the other order. The rest of
      a word at the beginning of a window is left out.

    Args:
      tokens, lengths, seeds: as of `Objective.corrupt`.
      continues_word: see `VocabularyIds`.
    """
    batch, longest = tokens.shape
    rows, place = np.arange(batch), np.arange(longest)
    begins = np.ones(tokens.shape, bool) if continues_word is None else ~continues_word[tokens]
    low = np.maximum(-(-lengths // 3), 1)
    cut = _cut(begins, low, np.minimum(lengths - lengths // 3, lengths - 1), seeds)
    is_true = random_uniform(seeds, 1, _LABEL)[:, 0] < 0.5

    if kind == SENTENCE_ORDER:
        first = begins.argmax(axis=1)
        first = np.where(begins.any(axis=1) & (first < low), first, 0)
        starts = np.where(is_true, first, cut), np.where(is_true, cut, first)
        counts = np.where(is_true, cut - first, lengths - cut), np.where(is_true, lengths - cut, cut - first)
        return Pairs(*_joined(tokens, rows, rows, starts, counts), counts[0], _labels(is_true))

    step = random_keys(seeds, 1, _OTHER)[:, 0] % np.uint64(max(batch - 1, 1))
    other = (rows + 1 + step.astype(np.int64)) % batch
    latest = lengths[other] - (lengths - cut)
    is_true |= (latest < 0) | (other == rows)
    word = np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    starts = np.zeros(batch, np.int64), np.where(is_true, cut, word[other, np.maximum(latest, 0)])
    counts = cut, lengths - cut
    return Pairs(*_joined(tokens, rows, np.where(is_true, rows, other), starts, counts), cut, _labels(is_true))


def _labels(is_true: np.ndarray) -> np.ndarray:
    return np.where(is_true, FOLLOWS, DOES_NOT_FOLLOW).astype(np.int32)


def _cut(begins: np.ndarray, low: np.ndarray, high: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """A random place of each row from `low` to `high`, where a word begins if one does."""
    place = np.arange(begins.shape[1])
    within = (place >= low[:, None]) & (place <= high[:, None])
    of_words = within & begins
    allowed = np.where(of_words.any(axis=1, keepdims=True), of_words, within)
    return np.where(allowed, random_uniform(seeds, begins.shape[1], _CUT), 1.0).argmin(axis=1)


def _joined(
    tokens: np.ndarray,
    row_of_a: np.ndarray,
    row_of_b: np.ndarray,
    starts: tuple[np.ndarray, np.ndarray],
    counts: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Two parts of rows of `tokens`, one after the other: `[batch, length]`, and their tokens `[batch]`."""
    place = np.arange(tokens.shape[1])
    is_a = place < counts[0][:, None]
    row = np.where(is_a, row_of_a[:, None], row_of_b[:, None])
    column = place + np.where(is_a, starts[0][:, None], (starts[1] - counts[0])[:, None])
    lengths = counts[0] + counts[1]
    is_text = place < lengths[:, None]
    return np.where(is_text, tokens[row, np.where(is_text, column, 0)], 0).astype(np.int32), lengths
