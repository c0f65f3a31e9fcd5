"""The epochs of the documents that the tasks of a stream have examples of."""

from collections.abc import Mapping
from typing import Any

import numpy as np


class EpochCounter:
    """Counts the examples of one reader by task and epoch.

    The epoch that an example belongs to comes from its document. The length of an epoch is known when the first
    one has ended; until then the fraction is left out. A shuffle buffer mixes
    the end of an epoch with the beginning of the next, and a new epoch counts from its first example on: a buffer that
    holds many epochs of a small corpus lets the count run ahead of the examples.
    """

    def __init__(self) -> None:
        # By the number of the task: the epoch, its examples so far, the examples of the one before (0: not known).
        self._counts: dict[int, tuple[int, int, int]] = {}

    def add(self, tasks: np.ndarray, epochs: np.ndarray) -> None:
        """More examples: their tasks and epochs, `[examples]`. An epoch of -1 is not known and not counted."""
        known = epochs >= 0
        pairs, counts = np.unique(np.stack([tasks[known], epochs[known]], axis=1), axis=0, return_counts=True)
        for (task, epoch), count in zip(pairs.tolist(), counts.tolist(), strict=True):
            current, examples, whole = self._counts.get(task, (epoch, 0, 0))
            if epoch > current:
                self._counts[task] = (epoch, count, examples)
            else:  # A straggler of the epoch before counts for the present one: no example is counted twice.
                self._counts[task] = (current, examples + count, whole)

    def epochs(self) -> dict[int, float]:
        """Whole epochs and, from the second on, the fraction of the present one, by the number of the task."""
        return {
            task: epoch + (min(examples / whole, 1.0) if whole else 0.0)
            for task, (epoch, examples, whole) in self._counts.items()
        }

    def save(self) -> dict[str, Any]:
        return {str(task): list(counts) for task, counts in self._counts.items()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self._counts = {int(task): (epoch, examples, whole) for task, (epoch, examples, whole) in saved.items()}
