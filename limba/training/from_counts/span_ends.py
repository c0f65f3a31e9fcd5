"""Where the spans of the targets end, by counts: what sentinels and EOS begin with beside the pieces of text."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import numpy as np

from limba.training.from_counts.factored_bigram import BigramCounts, FactoredBigram

# Of pairs of pieces, by which the sum of the pieces of text is estimated.
_PAIRS = 1024


@dataclasses.dataclass(frozen=True)
class SpanEnds:
    """How the targets of a T5 go on behind a piece of text, and how they begin.

    Attributes:
      sentinels: ids in the order in which spans have them.
      eos_id: None for a vocabulary without EOS.
      end: the chance that a span ends behind a piece of text of it, between 0 and 1.
      eos: of these ends, the share where the targets end too.
    """

    sentinels: Sequence[int]
    eos_id: int | None
    end: float
    eos: float

    @classmethod
    def of(cls, targets: np.ndarray, firsts: np.ndarray, sentinels: Sequence[int], eos_id: int | None) -> Self | None:
        """By counts of ids; None for targets that do not begin with sentinels, or have no text between them.

        Args:
          targets: int64 `[vocab]`, how often each id is a target.
          firsts: likewise, the first target of each row.
        """
        used = np.array([id_ for id_ in sentinels if id_ < len(targets)], np.int64)
        at_first = firsts[used].sum()
        if 2 * at_first <= firsts.sum():
            return None
        rows = targets[eos_id] if eos_id is not None else 0
        ends = targets[used].sum() - at_first + rows
        text = targets.sum() - targets[used].sum() - rows
        if not 0 < ends < text:
            return None
        return cls(tuple(map(int, used)), eos_id, float(ends / text), float(rows / ends))

    @property
    def odds(self) -> float:
        """Of an end against another piece of text."""
        return self.end / (1 - self.end)


def sums_of_text(
    bigram: FactoredBigram,
    behind: FactoredBigram,
    weight: float,
    bias: np.ndarray,
    pairs: BigramCounts,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, float]:
    """The logarithm of the summed exponentials of all pieces of text, as a plane over the two vectors before them.

    Logits of text are such only up to a constant of their context, and a sentinel's must stand beside them.

    Args:
      weight: of `behind`.
      bias: float32 `[vocab]`, of the logits.
      pairs: of a piece behind a blank and one shortly before it, from which contexts are drawn.

    Returns:
      What `bigram.left` is multiplied with, `[rank]`, and `behind.left`, `[behind rank]`; a constant.
    """
    seen = np.flatnonzero(bigram.seen)
    chosen = pairs.keys[rng.choice(len(pairs.keys), _PAIRS, p=pairs.counts / pairs.counts.sum())]
    right, left = np.divmod(chosen, len(bigram.seen))
    vectors = np.concatenate([bigram.left[left], behind.left[right]], axis=1)
    logits = vectors @ np.concatenate([bigram.right[seen], weight * behind.right[seen]], axis=1).T + bias[seen]
    highest = logits.max(axis=1, keepdims=True)
    sums = (highest + np.log(np.exp(logits - highest).sum(axis=1, keepdims=True)))[:, 0]
    # Of a rank near the number of pairs the plane would fit chance: it is drawn to the mean.
    centred = vectors - vectors.mean(axis=0)
    products = centred.T @ centred
    products += 0.01 * np.trace(products) / len(products) * np.eye(len(products), dtype=products.dtype)
    slope = np.linalg.solve(products, centred.T @ (sums - sums.mean()))
    constant = float(sums.mean() - vectors.mean(axis=0) @ slope)
    return slope[: bigram.rank], slope[bigram.rank :], constant
