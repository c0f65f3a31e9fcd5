"""Evaluation sets: the batches of a task or a mixture, in one pass, which can be iterated again."""

import itertools
from collections.abc import Iterator

import numpy as np

from limba.data import contract
from limba.tasks.pipeline import readers
from limba.tasks.pipeline.positions import ReadPlan
from limba.tasks.pipeline.readers import ReadAhead
from limba.tasks.pipeline.streams import Stream
from limba.tasks.registry.tasks import is_mixture


def evaluation_sets(stream: Stream, rows: slice) -> contract.EvalBatches:
    """The set of each task, and of the mixture itself; `rows` are this host's rows of a batch."""
    sets = {task.name: EvalSet(stream, task, rows) for task in stream.tasks}
    if is_mixture(stream.provider):
        sets[stream.provider.name] = EvalSet(stream, None, rows)
    return sets


class EvalSet:
    """The batches of one task, or of the whole mixture (`task` is None): they end, and can be iterated again.

    Attributes:
      may_be_endless: a source of a user's own is not known to end.
      is_cached: later passes give the batches of the first one.
    """

    def __init__(self, stream: Stream, task: object, rows: slice):
        self.may_be_endless = stream.may_be_endless(task)
        self._stream = stream
        self._task = task
        self._rows = rows
        self.is_cached = stream.config.use_memory_cache
        self._cache: list[contract.Batch] = []
        self._remaining: Iterator[contract.Batch] | None = None

    def __iter__(self) -> Iterator[contract.Batch]:
        if not self.is_cached:
            yield from self._read()
            return
        if self._remaining is None:
            self._remaining = self._read()
        # The consumer may stop early, so the first pass can take several iterations.
        for index in itertools.count():
            if index == len(self._cache):
                batch = next(self._remaining, None)
                if batch is None:
                    return
                self._cache.append(batch)
            yield self._cache[index]

    def _read(self) -> Iterator[contract.Batch]:
        stream = self._stream
        seed, batch_size = stream.config.seed, stream.config.batch_size
        assert seed is not None
        batches = ReadAhead(stream.batches(batch_size, ReadPlan(seed, num_epochs=1), self._task), 2)
        try:
            for number in itertools.count():
                try:
                    batch = next(batches, None)
                except readers.UNREADABLE as error:
                    raise readers.failed(error, stream.config.name, number) from error
                if batch is None:
                    return
                features = stream.to_model_features(batch)
                missing = batch_size - len(next(iter(features.values())))
                full = {name: np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) for name, x in features.items()}
                yield {name: value[self._rows] for name, value in full.items()}
        finally:
            batches.close()
