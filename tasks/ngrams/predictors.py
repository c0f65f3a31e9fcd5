"""What n-grams predict: interpolated absolute discounting.

Of a word w after a context c, seen C(c, w) times, T(c) different words being seen after c (Ney, Essen and Kneser, "On
structuring probabilistic dependences in stochastic language modelling", 1994):

    p(w | c) = max(C(c, w) - d, 0) / C(c) + d T(c) / C(c) p(w | shorter c),    d = n1 / (n1 + 2 n2)

n1 and n2 are the n-grams that were seen once and twice. The shortest context is none, and what is behind it is uniform
over all text pieces. A context that was never seen, or that a target does not have, predicts what the shorter one does.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from limba.tasks.ngrams.counts import MOST_DISTANCE, NgramCounts, SparseCounts
from limba.tasks.ngrams.spliced_texts import NONE, Contexts

UNIGRAM, BIGRAM, TRIGRAM, BOTH_SIDED = "unigram", "left_bigram", "left_trigram", "both_sided_ngrams"
# Probabilities that are made at a time, and of an evaluation.
_MOST_AT_ONCE, _MOST_PREDICTIONS = 2**23, 2**30


@dataclasses.dataclass(frozen=True)
class Predicted:
    """Of each target: nats float64 `[targets]`, and how many words are likelier, int64 `[targets]`."""

    nats: np.ndarray
    rank: np.ndarray


class NgramPredictors:
    """Predictions of text pieces from counts.

    Args:
      is_text: bool `[vocab_size]`, the pieces that can be predicted.
    """

    def __init__(self, counts: NgramCounts, is_text: np.ndarray):
        self._size = counts.vocab_size
        self._pieces = np.flatnonzero(is_text)
        self._column = np.full(self._size, NONE)
        self._column[self._pieces] = np.arange(len(self._pieces))
        self._bigrams, self._trigrams = _Table.of(counts.bigrams), _Table.of(counts.trigrams)
        self._before = [_Table.of(table) for table in counts.before]
        self._unigram = self._of_unigrams(counts.unigrams[self._pieces])

    @property
    def most_targets(self) -> int:
        """Of an evaluation that is to take less than a minute: a prediction costs as much as there are pieces."""
        return _MOST_PREDICTIONS // len(self._pieces)

    def predict(self, contexts: Contexts) -> Mapping[str, Predicted]:
        """Of each predictor, in the order unigram, left bigram, left trigram, both-sided n-grams.

        The last one multiplies the trigram's p(w) with p(w | right) / p(w), where a token at a distance of at most
        `counts.MOST_DISTANCE` is seen after the span, and normalizes; it is left out where no target has one.
        """
        parts: dict[str, list[Predicted]] = {}
        for part in self._parts(contexts):
            target = self._column[part.words]
            for name, probabilities in self._of_part(part):
                own = probabilities[np.arange(len(target)), target][:, None]
                predicted = Predicted(-np.log(own[:, 0]), np.sum(probabilities > own, axis=1))
                parts.setdefault(name, []).append(predicted)
        if not np.any(_is_near(contexts)):
            parts.pop(BOTH_SIDED, None)
        return {
            name: Predicted(*(np.concatenate([getattr(x, field) for x in part]) for field in ("nats", "rank")))
            for name, part in parts.items()
        }

    def _parts(self, contexts: Contexts) -> Iterator[Contexts]:
        step = max(1, _MOST_AT_ONCE // len(self._pieces))
        for start in range(0, len(contexts), step):
            yield contexts.part(slice(start, start + step))

    def _of_part(self, contexts: Contexts) -> Iterator[tuple[str, np.ndarray]]:
        """Names, and probabilities float64 `[targets, pieces]`."""
        shape = (len(contexts), len(self._pieces))
        yield UNIGRAM, np.broadcast_to(self._unigram, shape)
        bigram = self._interpolated(self._bigrams, contexts.left, np.broadcast_to(self._unigram, shape))
        yield BIGRAM, bigram
        both = np.where(contexts.left_but_one == NONE, NONE, contexts.left_but_one * self._size + contexts.left)
        trigram = self._interpolated(self._trigrams, both, bigram)
        yield TRIGRAM, trigram
        product = np.array(trigram)
        for distance, counts in enumerate(self._before, start=1):
            rows = np.flatnonzero((contexts.distance == distance) & (contexts.right != NONE))
            lower = np.broadcast_to(self._unigram, (len(rows), shape[1]))
            product[rows] *= self._interpolated(counts, contexts.right[rows], lower) / self._unigram
        yield BOTH_SIDED, product / product.sum(axis=1, keepdims=True)

    def _of_unigrams(self, counts: np.ndarray) -> np.ndarray:
        uniform = np.full(len(counts), 1.0 / len(counts))
        if not counts.sum():
            return uniform
        discount = _discount(counts[counts > 0])
        left_over = discount * np.count_nonzero(counts) / counts.sum()
        return np.maximum(counts - discount, 0) / counts.sum() + left_over * uniform

    def _interpolated(self, table: "_Table", contexts: np.ndarray, lower: np.ndarray) -> np.ndarray:
        counts, sums, discount = table.counts, table.sums, table.discount
        starts, ends = counts.starting_with(contexts, self._size)
        starts, ends = (np.where(contexts == NONE, 0, x) for x in (starts, ends))
        lengths = ends - starts
        totals = (sums[ends] - sums[starts])[:, None]
        weight = np.where(totals > 0, discount * lengths[:, None] / np.maximum(totals, 1), 1.0)
        made = lower * weight
        row = np.repeat(np.arange(len(contexts)), lengths)
        entry = np.arange(lengths.sum()) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        column = self._column[counts.keys[entry] % self._size]
        made[row, column] += (counts.counts[entry] - discount) / totals[row, 0]
        return made


@dataclasses.dataclass(frozen=True)
class _Table:
    """Counts with what every part of the targets asks of them: their sums up to each entry, and their discount."""

    counts: SparseCounts
    sums: np.ndarray
    discount: float

    @classmethod
    def of(cls, counts: SparseCounts) -> "_Table":
        return cls(counts, np.concatenate([[0], np.cumsum(counts.counts)]), _discount(counts.counts))


def _discount(counts: np.ndarray) -> float:
    once, twice = (int(np.sum(counts == i)) for i in (1, 2))
    # Tables that have forgotten rare n-grams, and very small ones, have no such ratio.
    return once / (once + 2 * twice) if once and twice else 0.5


def _is_near(contexts: Contexts) -> np.ndarray:
    return (contexts.right != NONE) & (contexts.distance <= MOST_DISTANCE)
