"""Batches of evaluations: read and counted once, then kept on the devices for the evaluations that follow."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping

import jax
import numpy as np

from limba.data.contract import Batch
from limba.partitioning.meshes import PjitPartitioner

# Of each device, for all tasks: 65,000 rows of 512 inputs and 114 targets, spread over eight of them.
_MOST_BYTES = 2**25


@dataclasses.dataclass(frozen=True)
class KeptBatch:
    """One batch.

    Attributes:
      placed: global arrays `[batch, …]` on the devices.
      target_counts: how often each token is a target among this host's rows, `[largest token + 1]`.
      shape: rows and length of this host's targets.
    """

    placed: Batch
    target_counts: np.ndarray
    shape: tuple[int, int]


class KeptBatches:
    """The batches of one task, any number of times."""

    def __init__(self, batches: Iterable[Batch], partitioner: PjitPartitioner, room: "_Room"):
        self._batches, self._partitioner, self._room = batches, partitioner, room
        self._may_stay = getattr(batches, "is_cached", False)
        self._kept: list[KeptBatch] = []
        self._are_all = False

    def __iter__(self) -> Iterator[KeptBatch]:
        yield from self._kept
        if self._are_all:
            return
        # An evaluation may end before the batches do; the next one may then take more.
        keeps = self._may_stay
        for batch in itertools.islice(self._batches, len(self._kept), None):
            kept = self._place(batch)
            if keeps := keeps and self._room.takes(kept.placed):
                self._kept.append(kept)
            yield kept
        self._are_all = keeps

    def _place(self, batch: Batch) -> KeptBatch:
        targets = np.asarray(batch["decoder_target_tokens"])
        counts = np.bincount(targets[np.asarray(batch["decoder_loss_weights"]) > 0])
        return KeptBatch(self._partitioner.shard_batch(batch), counts, targets.shape)


class _Room:
    """What is left for batches on a device."""

    def __init__(self, size: int):
        self._left = size

    def takes(self, arrays: Batch) -> bool:
        self._left -= sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(arrays))
        return self._left >= 0


def keep(batches: Mapping[str, Iterable[Batch]], partitioner: PjitPartitioner) -> dict[str, KeptBatches]:
    """The batches of each task.

    Those stay that are the same in each pass, and say so: they have a true `is_cached`. Others, such as those of a
    user's own function, are read again by each evaluation.
    """
    room = _Room(_MOST_BYTES)
    return {task: KeptBatches(x, partitioner, room) for task, x in batches.items()}
