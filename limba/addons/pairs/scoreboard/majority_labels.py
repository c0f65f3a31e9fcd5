"""What a table of words and their most frequent labels says: the baseline of taggers."""

import collections
import itertools
from collections.abc import Sequence


class MajorityLabels:
    """Each word's most frequent label: what labels of words reach without a model.

    A word that was not seen gets the most frequent label of all. Of labels as frequent as each other it is the first.

    Args:
      words, labels: of the sentences that are learned from; at least one word.

    Attributes:
      label: the most frequent one of all.
    """

    def __init__(self, words: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]):
        counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for of_sentence in zip(words, labels, strict=True):
            for word, label in zip(*of_sentence, strict=True):
                counts[word][label] += 1
        self.label = collections.Counter(itertools.chain.from_iterable(labels)).most_common(1)[0][0]
        self._labels = {word: of_word.most_common(1)[0][0] for word, of_word in counts.items()}

    def __contains__(self, word: str) -> bool:
        return word in self._labels

    def of(self, words: Sequence[str]) -> list[str]:
        """The labels of words."""
        return [self._labels.get(word, self.label) for word in words]
