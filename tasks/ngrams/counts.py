"""Counts of n-grams, added up while a corpus is read, in bounded memory."""

import dataclasses
from collections.abc import Mapping
from typing import Self

import numpy as np

from limba.tasks.ngrams.spliced_texts import SplicedTexts

# Entries of a table; 24 bytes each while it is added to.
MOST_ENTRIES = 2**24
# Keys that wait until they are counted.
_MOST_WAITING = 2**21
MOST_DISTANCE = 3


@dataclasses.dataclass(frozen=True)
class SparseCounts:
    """How often each key was seen: `keys` int64, in order, and `counts` int64."""

    keys: np.ndarray
    counts: np.ndarray

    @classmethod
    def empty(cls) -> Self:
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))

    def added(self, keys: np.ndarray, most_entries: int) -> "SparseCounts":
        """With keys in any order. Of more than `most_entries` the rarest are forgotten: about half of them is left."""
        new, of_new = np.unique(keys, return_counts=True)
        both = np.concatenate([self.keys, new])
        order = np.argsort(both, kind="stable")
        both, counts = both[order], np.concatenate([self.counts, of_new])[order]
        starts = np.flatnonzero(np.diff(both, prepend=-1))
        both, counts = both[starts], np.add.reduceat(counts, starts) if len(starts) else counts
        if len(both) > most_entries:
            limit = np.partition(counts, -(most_entries // 2))[-(most_entries // 2)]
            kept = counts >= limit if np.sum(counts >= limit) <= most_entries else counts > limit
            both, counts = both[kept], counts[kept]
        return SparseCounts(both, counts)

    def starting_with(self, contexts: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the keys `context * vocab_size + word` of each context begin and end, int64 `[contexts]`."""
        return tuple(np.searchsorted(self.keys, (contexts + i) * vocab_size) for i in (0, 1))  # type: ignore[return-value]


class NgramCounts:
    """Counts of the text tokens of a corpus.

    Attributes:
      vocab_size: the factor in keys.
      unigrams: int64 `[vocab_size]`.
      bigrams: of `u * vocab_size + w`, where w follows u.
      trigrams: of `(u * vocab_size + v) * vocab_size + w`.
      before: of `r * vocab_size + w` for each distance from 1 to `MOST_DISTANCE`, where r follows w at that distance.
      targets, firsts: int64 `[vocab_size]`, how often each id is a target, sentinels and EOS among them, and the first
        target of its row; 0 for encoders.
    """

    def __init__(self, vocab_size: int, most_entries: int = MOST_ENTRIES, trigrams: bool = True, before: bool = True):
        """Raises ValueError for a vocabulary whose trigrams have no number of 64 bits.

        With `trigrams` or `before` False these tables stay empty: a fifth of the memory, and three fifths.
        """
        if vocab_size**3 >= 2**63:
            raise ValueError(f"N-grams of {vocab_size:,} pieces do not fit into 64 bits.")
        self.vocab_size, self._most_entries = vocab_size, most_entries
        self.unigrams, self.targets, self.firsts = (np.zeros(vocab_size, np.int64) for _ in range(3))
        self._tables = [SparseCounts.empty() for _ in range(2 + MOST_DISTANCE)]
        self._waiting: list[list[np.ndarray]] = [[] for _ in self._tables]
        self._num_waiting = 0
        self._trigrams, self._before = trigrams, before

    @property
    def num_tokens(self) -> int:
        return int(self.unigrams.sum())

    @property
    def bigrams(self) -> SparseCounts:
        return self._counted()[0]

    @property
    def trigrams(self) -> SparseCounts:
        return self._counted()[1]

    @property
    def before(self) -> list[SparseCounts]:
        return self._counted()[2:]

    def add(self, texts: SplicedTexts) -> None:
        tokens, size = texts.tokens, self.vocab_size
        self.unigrams += np.bincount(tokens, minlength=size)
        text = np.cumsum(texts.begins)

        def pairs(distance: int) -> tuple[np.ndarray, np.ndarray]:
            inside = text[distance:] == text[:-distance]
            return tokens[:-distance][inside], tokens[distance:][inside]

        first, second = pairs(1)
        self._waiting[0].append(first * size + second)
        if self._trigrams:
            inside = text[2:] == text[:-2]
            self._waiting[1].append(((tokens[:-2] * size + tokens[1:-1]) * size + tokens[2:])[inside])
        if self._before:
            for distance in range(1, MOST_DISTANCE + 1):
                word, right = pairs(distance)
                self._waiting[1 + distance].append(right * size + word)
        self._num_waiting += len(tokens)
        if self._num_waiting >= _MOST_WAITING:
            self._counted()

    def add_targets(self, batch: Mapping[str, np.ndarray]) -> None:
        """Counts the targets of a batch of the features in `limba.data.contract`, packed or not."""
        if "decoder_input_tokens" not in batch:
            return
        is_target = np.asarray(batch["decoder_loss_weights"]) > 0
        is_first = is_target & (np.asarray(batch["decoder_input_tokens"]) == 0)
        targets = np.asarray(batch["decoder_target_tokens"])
        for counts, chosen in ((self.targets, is_target), (self.firsts, is_first)):
            counts += np.bincount(targets[chosen], minlength=self.vocab_size)

    def _counted(self) -> list[SparseCounts]:
        if self._num_waiting:
            self._tables = [
                table.added(np.concatenate(new), self._most_entries) if new else table
                for table, new in zip(self._tables, self._waiting, strict=True)
            ]
            self._waiting = [[] for _ in self._tables]
            self._num_waiting = 0
        return self._tables
