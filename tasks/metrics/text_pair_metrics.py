"""Metrics of the vectors of pairs of texts: how well one text finds the other, and correlations with scores."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from limba.tasks.metrics.text_metrics import Metrics, pearson_corrcoef, spearman_corrcoef

# Pairs that are searched, the first of a split: the cosines of all with all are MOST_PAIRS ** 2.
MOST_PAIRS = 10_000
_ROWS_AT_A_TIME = 512


@dataclasses.dataclass(frozen=True)
class TextPair:
    """A pair, as the metrics get it; `score` says how alike its texts are, None for a pair that belongs together."""

    first: str
    second: str
    score: float | None = None


def retrieval(targets: Sequence[TextPair], scores: tuple[Any, Mapping[str, Any]]) -> Metrics:
    """How well the first text of a pair finds the second one among those of all pairs, by cosine.

    `accuracy_at_1` is the share of pairs whose second text is the nearest, `mrr` the mean of 1 / rank, both times 100.
    Texts as near as the right one count as nearer. Second texts of pairs with the same first text, and equal second
    texts, are right too and do not count. Of more than `MOST_PAIRS` pairs the first ones are searched.

    Args:
      scores: what `ContrastiveModel.score_batch` gives: cosines, and the vectors "first" and "second" `[pairs, embed]`.
    """
    found = retrieval_ranks(targets[:MOST_PAIRS], *(scores[1][name] for name in ("first", "second")))
    return {
        "accuracy_at_1": 100 * float(np.mean(found == 1)),
        "mrr": 100 * float(np.mean(1 / found)),
        "num_pairs": len(found),
    }


def retrieval_ranks(pairs: Sequence[TextPair], first: Any, second: Any) -> np.ndarray:
    """The rank of the second text of each pair among those of all, for its first text, as `retrieval` counts them.

    Args:
      first, second: vectors of length 1 of at least these pairs, `[pairs, embed]`.

    Returns:
      Int64 `[pairs]`, from 1.
    """
    first, second = (np.asarray(vectors, np.float32)[: len(pairs)] for vectors in (first, second))
    ids = [np.unique([getattr(x, side) for x in pairs], return_inverse=True)[1] for side in ("first", "second")]
    ranks: list[int] = []
    for start in range(0, len(pairs), _ROWS_AT_A_TIME):
        rows = np.arange(start, min(start + _ROWS_AT_A_TIME, len(pairs)))
        cosines = first[rows] @ second.T
        is_right = (ids[0][rows, None] == ids[0]) | (ids[1][rows, None] == ids[1])
        own = cosines[np.arange(len(rows)), rows]
        ranks += (1 + np.sum((cosines >= own[:, None]) & ~is_right, axis=1)).tolist()
    return np.array(ranks, np.int64)


def cosine_correlations(targets: Sequence[TextPair], scores: tuple[Any, Mapping[str, Any]]) -> Metrics:
    """Spearman's and Pearson's correlation of the cosines of pairs with their scores, times 100."""
    given, cosines = [float(x.score or 0) for x in targets], np.asarray(scores[0], np.float64).tolist()
    return {**spearman_corrcoef(given, cosines), **pearson_corrcoef(given, cosines)}
