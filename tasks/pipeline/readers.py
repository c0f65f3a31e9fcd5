"""Logical readers: endless batches of their rows of the global batch, and a position that is saved and restored."""

import dataclasses
import itertools
import json
import logging
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from limba import data
from tasks import fingerprints
from tasks.epochs import EpochCounter
from tasks.open_iterators import close_at_exit
from tasks.positions import POSITION_SIZE, Place, Position
from tasks.streams import Stream

logger = logging.getLogger(__name__)


class Reader(Protocol):
    """One logical reader: endless batches of its rows, and where it is."""

    state_name: str
    epochs: EpochCounter

    def __next__(self) -> dict[str, np.ndarray]: ...

    def advance(self) -> None:
        """The last batch was taken: a position that is saved from here on is behind it."""
        ...

    def save(self) -> bytes: ...

    def check(self, state: bytes) -> None:
        """Raises ValueError if a state is damaged or was saved with another configuration."""
        ...

    def restore(self, state: bytes) -> None: ...


class CountedReader:
    """A reader of sources that can begin anywhere. Its state is a few counters, as JSON."""

    def __init__(self, stream: Stream, reader: int, layout: data.ReaderLayout, seed: int):
        self._stream = stream
        self._reader = reader
        self._layout = layout
        self.state_name = f"reader-{reader:04d}-of-{layout.num_readers:04d}.json"
        self.epochs = EpochCounter()
        self._open(seed, Place(), 0)
        close_at_exit(self)

    def _open(self, seed: int, place: Place, batches: int) -> None:
        self._seed, self._place, self._batches = seed, place, batches
        layout = self._layout
        dataset = self._stream.batches(layout.rows_per_reader, seed, self._reader, layout.num_readers, place=place)
        self._iterator: Any = iter(dataset.prefetch(2))

    def __next__(self) -> dict[str, np.ndarray]:
        batch = next_batch(self._iterator, self._stream.config.name, self._batches)
        tasks = self._stream.tasks_of(batch)
        if "position" in batch:
            self._seen = batch["position"][:, 0], batch.pop("epoch")
        else:  # Packed rows have the positions of all tasks where their group begins.
            position = batch["positions"].reshape(-1, POSITION_SIZE)
            self._seen = position[:, 0], position[:, 1]
        self._next_place = self._place.after(batch)
        return self._stream.to_model_features(batch) | tasks

    def advance(self) -> None:
        self._batches += 1
        self._place = self._next_place
        self.epochs.add(*self._seen)

    def close(self) -> None:
        """Ends reading for good."""
        self._iterator = None

    def save(self) -> bytes:
        position = {}
        for number, place in sorted(self._place.positions.items()):
            task = self._stream.tasks[number]
            file = pathlib.PurePath(task.source.list_shards(self._stream.config.split)[place.shard]).name
            position[task.name] = {**dataclasses.asdict(place), "file": file}
        state = {
            "batches": self._batches,
            "position": position,
            "examples": self._place.examples,
            "rows": self._place.rows,
            "epochs": self.epochs.save(),
            "fingerprint": self._stream.fingerprint(self._seed, self._layout.num_readers),
        }
        return json.dumps(state, indent=1, ensure_ascii=False).encode()

    def check(self, state: bytes) -> None:
        check_fingerprint(
            self._load(state)["fingerprint"], self._stream, self._seed, self._layout.num_readers, self.state_name
        )

    def restore(self, state: bytes) -> None:
        saved = self._load(state)
        numbers = {task.name: number for number, task in enumerate(self._stream.tasks)}
        positions = {
            numbers[name]: Position(**{key: value for key, value in place.items() if key != "file"})
            for name, place in saved["position"].items()
        }
        # A run without a seed goes on with the seed that it drew first.
        self._open(saved["fingerprint"]["seed"], Place(positions, saved["examples"], saved["rows"]), saved["batches"])
        self.epochs.restore(saved["epochs"])

    def _load(self, state: bytes) -> dict[str, Any]:
        try:
            return json.loads(state)
        except ValueError as error:
            raise ValueError(f"The saved data position {self.state_name} is damaged ({error}).") from error


def next_batch(iterator: Any, name: str, number: int, what: str = "batches") -> dict[str, np.ndarray]:
    """The next batch of a pipeline as NumPy arrays, or its next of something else, behind so many.

    Raises:
      RuntimeError: with the error of a reading function, which TensorFlow wraps into its own with a traceback as text.
    """
    try:
        return {name: value.numpy() for name, value in next(iterator).items()}
    except tf.errors.OpError as error:
        lines = [line for line in error.message.splitlines() if line.strip()]
        reasons = filter(None, (re.search(r"\w+Error: .*", line) for line in lines))
        reason = next((found[0] for found in reasons), lines[0])
        raise RuntimeError(f"Reading {name!r} failed after {number} {what}: {reason}") from error


def read(dataset: tf.data.Dataset, name: str, what: str) -> Iterator[dict[str, np.ndarray]]:
    """A data set that ends, of batches or examples, as NumPy arrays; raises what `next_batch` raises."""
    iterator = iter(dataset)
    for number in itertools.count():
        try:
            yield next_batch(iterator, name, number, what)
        except StopIteration:
            return


def check_fingerprint(saved: Mapping[str, Any], stream: Stream, seed: int, num_readers: int, state_name: str) -> None:
    """Raises ValueError if a state was saved with another configuration; a seed that was drawn may differ.

    Data sets whose branch has moved on since go back to the commit that the state belongs to.
    """
    stream.keep_revisions(saved)
    seed = saved["seed"] if stream.config.seed is None else seed
    differences = list(fingerprints.differences(saved, stream.fingerprint(seed, num_readers)))
    if differences:
        raise ValueError(
            f"The saved data position ({state_name}) belongs to other data: {'; '.join(differences)}. Restore "
            "what it was, or start a new run in another directory."
        )


class TrainBatches:
    """This host's rows of the global batch, reader by reader. Implements `limba.data.TaskBatches`."""

    def __init__(self, readers: Sequence[Reader], stream: Stream):
        self._readers = readers
        self._tasks = stream.tasks
        self.task_groups = stream.task_groups

    def __iter__(self) -> "TrainBatches":
        return self

    def __next__(self) -> data.Batch:
        parts = [next(reader) for reader in self._readers]
        # All or none: a batch that could not be read whole is read again after a restart.
        for reader in self._readers:
            reader.advance()
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def epochs(self) -> dict[str, float]:
        """The mean over this host's readers, of the tasks that were read from."""
        counted = [reader.epochs.epochs() for reader in self._readers]
        numbers = sorted({number for epochs in counted for number in epochs})
        return {self._tasks[n].name: float(np.mean([epochs.get(n, 0.0) for epochs in counted])) for n in numbers}

    def save_state(self) -> Mapping[str, bytes]:
        return {reader.state_name: reader.save() for reader in self._readers}

    def restore_state(self, state: Mapping[str, bytes]) -> None:
        for reader in self._readers:
            if reader.state_name not in state:
                raise ValueError(
                    f"The saved data position has no {reader.state_name!r}, only {sorted(state)}; keep the number of "
                    "readers that the run began with (DatasetConfig.num_readers)."
                )
        # All are compared before one is moved.
        for reader in self._readers:
            reader.check(state[reader.state_name])
        for reader in self._readers:
            reader.restore(state[reader.state_name])
