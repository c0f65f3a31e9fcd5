"""A training whose batches change at given steps: one stream after another, and the documents go on.

Each stage is a stream of its own configuration. A position is that of the stage's readers, in their files: it needs
nothing of the stages before, and later ones may be changed when a run resumes.
"""

import bisect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from limba.data import contract
from limba.files import json_text
from limba.tasks.pipeline import fingerprints
from limba.tasks.pipeline.positions import load_state
from limba.tasks.pipeline.readers import TrainBatches
from limba.tasks.pipeline.streams import Stream

logger = logging.getLogger(__name__)

OpenBatches = Callable[[Stream], TrainBatches]


class StagedBatches:
    """This host's rows of the batches of several stages. Implements `limba.data.contract.TaskBatches`.

    Args:
      streams: of the stages, checked.
      begins: the number of batches before each.
      open_batches: opens a stream at its beginning.
    """

    def __init__(self, streams: Sequence[Stream], begins: Sequence[int], open_batches: OpenBatches):
        self._streams, self._begins, self._open_batches = streams, begins, open_batches
        self._count = 0  # batches that were read
        self._position: Mapping[str, bytes] | None = None  # before the first batch of a stage: as the last one left it
        self._open(0)

    def _open(self, stage: int) -> None:
        self._stage = stage
        self._batches = self._open_batches(self._streams[stage])

    @property
    def config(self) -> contract.DatasetConfig:
        """See `limba.data.contract.BatchIterator`."""
        return self._streams[self._stage].config

    @property
    def is_packed(self) -> bool:
        """Of any stage."""
        return any(stream.config.pack for stream in self._streams)

    @property
    def task_groups(self) -> Mapping[str, Sequence[int]]:
        return self._batches.task_groups

    def __iter__(self) -> "StagedBatches":
        return self

    def __next__(self) -> contract.Batch:
        self._go_to_stage()
        batch = next(self._batches)
        self._count, self._position = self._count + 1, None
        return batch

    def _stage_of(self, batch: int) -> int:
        return bisect.bisect_right(self._begins, batch) - 1

    def _go_to_stage(self) -> None:
        """Opens the stream of the next batch where the last one ended."""
        stage = self._stage_of(self._count)
        if stage == self._stage:
            return
        position, before = self._batches.save_state(), self._streams[self._stage]
        self._batches.close()
        self._open(stage)
        self._batches.restore_state({name: carried(x, before, self._streams[stage]) for name, x in position.items()})
        self._position = position
        config = self.config
        logger.info(
            "Stage %d of %d of the data begins: %s, lengths %s, batches of %d.",
            stage + 1,
            len(self._streams),
            config.name,
            dict(config.task_feature_lengths or {}),
            config.batch_size,
        )

    def stop_waiting(self) -> None:
        self._batches.stop_waiting()

    def epochs(self) -> Mapping[str, float]:
        return self._batches.epochs()

    def documents(self) -> list[contract.Document]:
        """See `limba.data.contract.BatchIterator`."""
        return self._batches.documents()

    def save_state(self) -> Mapping[str, bytes]:
        return self._batches.save_state() if self._position is None else self._position

    def check_state(self, state: Mapping[str, bytes]) -> None:
        """Raises ValueError if `restore_state` would; goes there, which reads nothing."""
        self.restore_state(state)

    def restore_state(self, state: Mapping[str, bytes]) -> None:
        name, content = next(((x, y) for x, y in state.items() if x.startswith("reader-")), ("", b""))
        count = load_state(content, f"The saved data position {name}")["batches"] if name else 0
        stage = self._stage_of(max(count - 1, 0))  # that of the last batch
        if stage != self._stage:
            self._batches.close()
            self._open(stage)
        self._batches.restore_state(state)
        self._count, self._position = count, None
        self._go_to_stage()

    def close(self) -> None:
        """Ends reading for good."""
        self._batches.close()


# ------------------------------------------------ from stage to stage -----------------------------------------------


def carried(state: bytes, before: Stream, now: Stream) -> bytes:
    """A reader's saved state as that of the next stage's reader, whose documents go on where `before`'s have ended.

    A task that both have, with the same rows, goes on to the row. Another task of the same corpus begins with the
    document from which the shuffle buffer was being filled: what is in the buffer is read again, with other blanks. A
    task of another corpus begins at its beginning.
    """
    saved = load_state(state, "The data position of the stage before")
    seed, num_readers = (saved["fingerprint"][name] for name in ("seed", "num_readers"))
    fingerprint = json.loads(json_text.dumps(fingerprints.of_stream(now, seed, num_readers)))  # as it is read again
    rows_are_same = _without_tasks(fingerprint) == _without_tasks(saved["fingerprint"])
    position, epochs, exact = {}, {}, rows_are_same and len(before.tasks) == len(now.tasks)
    names = [task.name for task in before.tasks]
    for number, task in enumerate(now.tasks):
        theirs = fingerprint["tasks"][task.name]
        other = _reads_the_same(task.name, theirs, saved["fingerprint"]["tasks"])
        if other is None or other not in saved["position"]:
            exact = exact and other == task.name
            continue
        goes_on = rows_are_same and _without_rate(theirs) == _without_rate(saved["fingerprint"]["tasks"][other])
        exact = exact and goes_on
        start = saved["position"][other]
        position[task.name] = start if goes_on else {**start, "example": 0, "taken": 0}
        if (counts := saved["epochs"].get(str(names.index(other)))) is not None:
            epochs[str(number)] = counts if goes_on else [counts[0], 0, 0]  # an epoch has another number of rows
    made = {
        "batches": saved["batches"],
        "position": position,
        "examples": saved["examples"],
        "rows": saved["rows"] if exact else 0,
        "epochs": epochs,
        "fingerprint": fingerprint,
    }
    return json_text.dumps(made, indent=1, ensure_ascii=False).encode()


def _reads_the_same(name: str, facts: Mapping[str, Any], before: Mapping[str, Any]) -> str | None:
    """The task of the stage before whose documents these are: of the same name, or else that with the highest rate."""
    same = [other for other, theirs in before.items() if theirs["source"] == facts["source"]]
    return name if name in same else max(same, key=lambda other: before[other]["rate"], default=None)


def _without_tasks(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """What the rows of a task depend on beside it; how many make a batch does not matter."""
    others = ("tasks", "mixture_or_task_name", "batch_size")
    return {name: value for name, value in fingerprint.items() if name not in others}


def _without_rate(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "rate"}
