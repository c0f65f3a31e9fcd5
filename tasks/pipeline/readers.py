"""Logical readers: endless batches of their rows of the global batch, made ahead, and a position that is saved."""

import collections
import dataclasses
import functools
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from limba.data import contract
from limba.files import json_text
from limba.files.untrusted_files import shown
from limba.tasks.pipeline import fingerprints
from limba.tasks.pipeline.epoch_counts import EpochCounter
from limba.tasks.pipeline.open_iterators import close_at_exit
from limba.tasks.pipeline.positions import POSITION_SIZE, Position, ReadPlan, TaskPosition, load_state
from limba.tasks.pipeline.streams import UNREADABLE, Stream
from limba.tasks.registry.rows import Columns

_T = TypeVar("_T")

_END = object()


class Batches(Protocol):
    """Open batches of a reader; `close` ends them. `stop_waiting` is `limba.data.contract.BatchIterator`'s."""

    def __next__(self) -> Columns: ...

    def stop_waiting(self) -> None: ...

    def close(self) -> None: ...


OpenBatches = Callable[[ReadPlan], Batches]


def read_in_thread(stream: Stream, num_rows: int, plan: ReadPlan) -> Batches:
    """The batches of a plan, made in advance by a thread."""
    return ReadAhead(stream.batches(num_rows, plan), stream.num_batches_ahead(num_rows, plan.num_readers))


class ReadAhead(Generic[_T]):
    """The items of an iterable, of which a thread makes up to `depth` in advance.

    An error of the iterable is raised where the item would have come, and again at every further call.
    """

    def __init__(self, items: Iterable[_T], depth: int):
        self._depth = depth
        self._made: collections.deque[Any] = collections.deque()
        # Told when an item is made or taken, and when either side should wait no longer: nobody looks by the clock.
        self._changed = threading.Condition()
        self._closed = self._stopped = False
        self._last: Any = None
        self._thread = threading.Thread(target=self._run, args=(iter(items),), name="limba-read-ahead", daemon=True)

    def _run(self, items: Iterator[_T]) -> None:
        while True:
            try:
                item: Any = next(items, _END)
            except BaseException as error:
                item = _Failure(error if isinstance(error, Exception) else ReadingError(repr(error)))
            with self._changed:
                self._changed.wait_for(lambda: len(self._made) < self._depth or self._closed)
                if self._closed:
                    return
                self._made.append(item)
                self._changed.notify_all()
            if item is _END or isinstance(item, _Failure):
                return

    def __iter__(self) -> "ReadAhead[_T]":
        return self

    def start(self) -> None:
        """Begins to read, if it has not begun; the first `next` does so too."""
        if self._thread.ident is None:
            self._thread.start()
            close_at_exit(self)

    def __next__(self) -> _T:
        self.start()
        item = self._take() if self._last is None else self._last
        if item is _END:
            self._last = item
            raise StopIteration
        if isinstance(item, _Failure):
            self._last = item
            raise item.error
        return item

    def _take(self) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: self._made or self._stopped)
            if not self._made:
                raise contract.ReadingStoppedError
            item = self._made.popleft()
            self._changed.notify_all()
            return item

    def stop_waiting(self) -> None:
        """Makes a `next` that waits raise `ReadingStoppedError`; any thread may call it, and a signal's handler."""
        self._tell("_stopped")

    def close(self) -> None:
        """Ends the thread after the item that it is making."""
        self._tell("_closed")

    def _tell(self, name: str) -> None:
        setattr(self, name, True)
        with self._changed:
            self._changed.notify_all()

    def join(self, seconds: float) -> None:
        """Waits until the thread has ended, at most so long."""
        if self._thread.ident is not None:
            self._thread.join(seconds)


class _Failure:
    def __init__(self, error: BaseException):
        self.error = error


class Reader(Protocol):
    """One logical reader: endless batches of its rows, and where it is."""

    state_name: str
    epoch_counter: EpochCounter

    def __next__(self) -> dict[str, np.ndarray]: ...

    def advance(self) -> None:
        """Moves the position that `save` writes behind the last batch."""
        ...

    def stop_waiting(self) -> None:
        """See `limba.data.contract.BatchIterator`."""
        ...

    def close(self) -> None:
        """Ends reading for good."""
        ...

    def save(self) -> bytes: ...

    def check(self, state: bytes) -> None:
        """Raises ValueError if a state is damaged or was saved with another configuration."""
        ...

    def restore(self, state: bytes) -> None: ...


class CountedReader:
    """A reader of sources that can begin anywhere. Its state is a few counters, as JSON.

    Args:
      open_batches: makes the batches of a plan; None makes them in a thread of this process.
      deals: see `ReadPlan`.
    """

    def __init__(
        self,
        stream: Stream,
        reader: int,
        layout: contract.ReaderRows,
        seed: int,
        open_batches: OpenBatches | None = None,
        deals: Mapping[int, str] | None = None,
    ):
        self._stream = stream
        self._reader = reader
        self._layout = layout
        self._open_batches = open_batches or functools.partial(read_in_thread, stream, layout.rows_per_reader)
        self.state_name = f"reader-{reader:04d}-of-{layout.num_readers:04d}.json"
        self.epoch_counter = EpochCounter()
        self._iterator: Any = None
        self._open(seed, Position(), 0, deals or {})

    def _open(self, seed: int, position: Position, batches: int, deals: Mapping[int, str]) -> None:
        if self._iterator is not None:
            self._iterator.close()
        self._seed, self._position, self._batches = seed, position, batches
        self._plan = ReadPlan(seed, self._reader, self._layout.num_readers, position=position, deals=deals)
        self._iterator = self._open_batches(self._plan)

    def __next__(self) -> dict[str, np.ndarray]:
        try:
            batch = dict(next(self._iterator))
        except UNREADABLE as error:
            raise failed(error, self._stream.config.name, self._batches) from error
        tasks = self._stream.tasks_of(batch)
        if "position" in batch:
            self._seen = batch["position"][:, 0], batch.pop("document")
        else:  # Packed rows have the positions of all tasks where their group begins.
            position = batch["positions"].reshape(-1, POSITION_SIZE)
            self._seen = position[:, 0], position[:, 1:4]
        self._next_position = self._position.after(batch)
        return self._stream.to_model_features(batch) | tasks

    def advance(self) -> None:
        self._batches += 1
        self._position = self._next_position
        tasks, documents = self._seen
        self.epoch_counter.add(tasks, documents[:, 0])

    def documents(self) -> list[contract.Document]:
        """The documents in which rows of the last batch begin, each once; of packed rows, where their groups begin."""
        seen = np.unique(np.column_stack(self._seen), axis=0).tolist()
        return [self._document(number, shard, row) for number, _, shard, row in seen if shard >= 0]

    def _document(self, number: int, shard: int, row: int) -> contract.Document:
        task = self._stream.tasks[number]
        return contract.Document(task.name, task.source.list_shards(self._stream.config.split)[shard], row)

    def stop_waiting(self) -> None:
        self._iterator.stop_waiting()

    def close(self) -> None:
        """Ends reading for good."""
        self._iterator.close()

    def save(self) -> bytes:
        position = {}
        for number, start in sorted(self._position.positions.items()):
            task = self._stream.tasks[number]
            file = pathlib.PurePath(task.source.list_shards(self._stream.config.split)[start.shard]).name
            position[task.name] = {**dataclasses.asdict(start), "file": file}
        state = {
            "batches": self._batches,
            "position": position,
            "examples": self._position.examples,
            "rows": self._position.rows,
            "epochs": self.epoch_counter.save(),
            "fingerprint": fingerprints.of_stream(self._stream, self._seed, self._layout.num_readers),
        }
        if self._plan.deals:
            state["deals"] = {self._stream.tasks[number].name: deal for number, deal in self._plan.deals.items()}
        return json_text.dumps(state, indent=1, ensure_ascii=False).encode()

    def check(self, state: bytes) -> None:
        saved = load_state(state, f"The saved data position {self.state_name}")
        # Of other data, every place is another.
        fingerprints.check(saved["fingerprint"], self._stream, self._seed, self._layout.num_readers, self.state_name)
        self._load(state)

    def restore(self, state: bytes) -> None:
        saved = self._load(state)
        numbers = {task.name: number for number, task in enumerate(self._stream.tasks)}
        positions = {
            numbers[name]: TaskPosition(**{key: value for key, value in start.items() if key != "file"})
            for name, start in saved["position"].items()
        }
        # A run without a seed keeps the seed that it drew first.
        position = Position(positions, saved["examples"], saved["rows"])
        deals = {numbers[name]: deal for name, deal in saved.get("deals", {}).items()}
        self._open(saved["fingerprint"]["seed"], position, saved["batches"], deals)
        self.epoch_counter.restore(saved["epochs"])

    def _load(self, state: bytes) -> dict[str, Any]:
        saved = load_state(state, f"The saved data position {self.state_name}")
        shards = {task.name: len(task.source.list_shards(self._stream.config.split)) for task in self._stream.tasks}
        for name, start in saved["position"].items():
            if start["shard"] >= shards.get(name, 0):
                raise ValueError(
                    f"The saved data position {self.state_name} is damaged: it is in shard {start['shard']} of "
                    f"{shown(name)}, which has {shards.get(name, 0)}."
                )
        return saved


class ReadingError(RuntimeError):
    """An error whose message names the error of a reading function."""


def failed(error: BaseException, name: str, number: int, unit: str = "batches") -> RuntimeError:
    """The error of reading a task, of which `number` batches were read."""
    reason = str(error) if isinstance(error, ReadingError) else f"{type(error).__name__}: {error}"
    return RuntimeError(f"Reading {name!r} failed after {number} {unit}: {reason}")


def reading(items: Iterable[_T], name: str, unit: str) -> Iterator[_T]:
    """The same items, made of a task's documents.

    Raises:
      RuntimeError: for an error of the iterable; it has the task's name and the number of items before it.
    """
    number = 0
    try:
        for item in items:
            yield item
            number += 1
    except UNREADABLE as error:
        raise failed(error, name, number, unit) from error


class TrainBatches:
    """This host's rows of the global batch, reader by reader. Implements `limba.data.contract.TaskBatches`."""

    def __init__(self, readers: Sequence[Reader], stream: Stream):
        self._readers = readers
        self._name, self._batch_size = stream.config.name, stream.config.batch_size
        self._tasks = stream.tasks
        self.task_groups = stream.task_groups
        self.is_packed = stream.config.pack

    def __iter__(self) -> "TrainBatches":
        return self

    def __next__(self) -> contract.Batch:
        parts = [next(reader) for reader in self._readers]
        # All readers advance or none.
        for reader in self._readers:
            reader.advance()
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def stop_waiting(self) -> None:
        for reader in self._readers:
            reader.stop_waiting()

    def close(self) -> None:
        """Ends reading for good."""
        for reader in self._readers:
            reader.close()

    def epochs(self) -> dict[str, float]:
        """The mean over this host's readers, of the tasks that were read from."""
        counted = [reader.epoch_counter.epochs() for reader in self._readers]
        numbers = sorted({number for epochs in counted for number in epochs})
        return {self._tasks[n].name: float(np.mean([epochs.get(n, 0.0) for epochs in counted])) for n in numbers}

    def documents(self) -> list[contract.Document]:
        """See `limba.data.contract.BatchIterator`; of readers that know them."""
        return [document for reader in self._readers for document in getattr(reader, "documents", list)()]

    def save_state(self) -> Mapping[str, bytes]:
        return {reader.state_name: reader.save() for reader in self._readers}

    def check_state(self, state: Mapping[str, bytes]) -> None:
        """Raises ValueError if `restore_state` would: if a position is missing, damaged or of other data."""
        for reader in self._readers:
            if reader.state_name not in state:
                for name in sorted(name for name in state if name.startswith("reader-") and name.endswith(".json")):
                    saved = load_state(state[name], f"The saved data position {name}")
                    fingerprints.check_task(saved["fingerprint"], self._name, name)
                    fingerprints.check_batch_size(saved["fingerprint"], self._batch_size, name)
                raise ValueError(
                    f"The saved data position has no {reader.state_name!r}, only {sorted(state)}; keep the number of "
                    "readers that the run began with (DatasetConfig.num_readers)."
                )
        for reader in self._readers:
            reader.check(state[reader.state_name])

    def restore_state(self, state: Mapping[str, bytes]) -> None:
        self.check_state(state)  # All are compared before one is moved.
        for reader in self._readers:
            reader.restore(state[reader.state_name])
