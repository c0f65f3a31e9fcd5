"""Where a reader is in the data, as a few counters.

A shuffle buffer, or a group of documents or of packed rows, is made again from its beginning, which the counters give;
TensorFlow saves its iterators with their buffers, 2 MB per reader for 512-token examples.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from limba.files import untrusted_json
from limba.files.number_ranges import AT_LEAST_0
from limba.tasks.pipeline import deals


@dataclasses.dataclass(frozen=True)
class TaskPosition:
    """Where a reader resumes in a task: where its shuffle buffer begins, and how much of the buffer was taken.

    Attributes:
      epoch, shard, row: the document with which a group begins; documents are preprocessed in groups. An epoch of -1 is
        the beginning.
      example: the example of the group with which the shuffle buffer begins.
      taken: examples that were taken from the buffer.
    """

    epoch: int = -1
    shard: int = -1
    row: int = -1
    example: int = 0
    taken: int = 0

    @property
    def document(self) -> tuple[int, int, int] | None:
        return (self.epoch, self.shard, self.row) if self.epoch >= 0 else None


_FIELDS = {field.name for field in dataclasses.fields(TaskPosition)}
# The task's number comes first.
POSITION_SIZE = 1 + len(dataclasses.fields(TaskPosition))


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a reader resumes.

    Attributes:
      positions: by the number of the task; tasks that were never read from are missing.
      examples: how many examples were drawn from the tasks up to these positions.
      rows: rows that were taken since then; not 0 only where examples are converted, and packed, in groups.
    """

    positions: Mapping[int, TaskPosition] = dataclasses.field(default_factory=dict)
    examples: int = 0
    rows: int = 0

    def of_task(self, number: int) -> TaskPosition:
        return self.positions.get(number, TaskPosition())

    def after(self, batch: dict[str, np.ndarray]) -> "Position":
        """The position after a batch of `Stream.batches`; removes the features with positions from the batch."""
        if "rows" in batch:
            rows, examples = batch.pop("rows"), batch.pop("examples")
            return Position(_by_task(batch.pop("positions")[-1]), int(examples[-1]), int(rows[-1]))
        positions = batch.pop("position")
        return Position({**self.positions, **_by_task(positions)}, self.examples + len(positions))


@dataclasses.dataclass(frozen=True)
class ReadPlan:
    """What a logical reader reads: its part of the documents, from a position on.

    Attributes:
      num_epochs: None is for ever.
      deals: how the documents of tasks are dealt to readers (`tasks.pipeline.deals`), by the number of the task, where
        it is not by rows.
    """

    seed: int
    reader: int = 0
    num_readers: int = 1
    num_epochs: int | None = None
    position: Position = dataclasses.field(default_factory=Position)
    deals: Mapping[int, str] = dataclasses.field(default_factory=dict)


def _by_task(positions: np.ndarray) -> dict[int, TaskPosition]:
    """The last position of each task of `[n, POSITION_SIZE]`; beginnings are left out."""
    return {number: TaskPosition(*position) for number, *position in positions.tolist() if position[0] >= 0}


def load_state(content: bytes, where: str) -> dict[str, Any]:
    """A reader's saved state: JSON with counters, the position in each task, epochs and the fingerprint.

    Raises:
      ValueError: if it is damaged; the message begins with `where`.
    """
    try:
        saved = untrusted_json.parse_object(content, "its JSON")
    except ValueError as error:
        raise ValueError(f"{where} is damaged ({error})") from error
    is_whole = (
        _are_counts([saved.get(name) for name in ("batches", "examples", "rows")], 0)
        and _are_tables(saved.get("position"), saved.get("epochs"))
        and _are_tables(*(starts := saved["position"].values()))
        and all(start.keys() - {"file"} == _FIELDS for start in starts)
        and all(_are_counts([start[name] for name in _FIELDS], -1) for start in starts)
        and all(task.isascii() and task.isdigit() and len(task) < 10 for task in saved["epochs"])
        and all(isinstance(c, list) and len(c) == 3 and _are_counts(c, -1) for c in saved["epochs"].values())
        and is_fingerprint(saved.get("fingerprint"))
        and _are_tables(ways := saved.get("deals", {}))
        and ways.keys() <= saved["fingerprint"]["tasks"].keys()
        and all(deal in (deals.ROTATED_ROWS, deals.EXAMPLES) for deal in ways.values())
    )
    if not is_whole:
        raise ValueError(f"{where} is damaged: it lacks counters of a reader, or has others.")
    return saved


def is_fingerprint(value: Any) -> bool:
    """Whether it has the seed and the tables that readers take from a fingerprint."""
    if not _are_tables(value) or not _are_tables(tasks := value.get("tasks")) or not _are_tables(*tasks.values()):
        return False
    vocabularies = (task.get("vocabulary", []) for task in tasks.values())
    return AT_LEAST_0.has(value.get("seed")) and all(isinstance(x, list) and _are_counts(x, 0) for x in vocabularies)


def _are_tables(*values: Any) -> bool:
    return all(isinstance(value, dict) for value in values)


def _are_counts(values: Iterable[Any], least: int) -> bool:
    return all(type(value) is int and least <= value < 2**53 for value in values)


def as_array(position: Position, num_tasks: int) -> np.ndarray:
    """int64 `[num_tasks, POSITION_SIZE]`: each task's number and its position."""
    return np.array([[number, *dataclasses.astuple(position.of_task(number))] for number in range(num_tasks)], np.int64)
