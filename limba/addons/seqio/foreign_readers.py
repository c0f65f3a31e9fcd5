"""Readers of pipelines whose position only TensorFlow can save: other sources of SeqIO, data sets of a user's own.

TensorFlow saves the position of an iterator to the last element, with the contents of all its buffers. It cannot save a
Python generator, which is read again up to the position.
"""

import functools
import io
import logging
import pathlib
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from limba.addons.seqio import empty_tasks, tf_iterators
from limba.addons.seqio.seqio_streams import ForeignStream, num_shards
from limba.data import contract
from limba.files import json_text, number_ranges, storage, untrusted_json
from limba.files.untrusted_files import cut, is_inside
from limba.tasks.pipeline import fingerprints, positions, readers
from limba.tasks.pipeline.epoch_counts import EpochCounter
from limba.tasks.pipeline.open_iterators import close_at_exit
from limba.tasks.pipeline.positions import ReadPlan

logger = logging.getLogger(__name__)


def open_readers(stream: ForeignStream, layout: contract.ReaderRows, seed: int) -> list["ForeignReader"]:
    """This host's readers of a stream."""
    for task in stream.tasks:
        shards = num_shards(task, stream.config)
        if layout.num_readers > 1 and shards is not None and shards < layout.num_readers:
            logger.warning(
                "%s has too few shards (%d) for %d readers: each of them reads everything and keeps its share.",
                task.name,
                shards,
                layout.num_readers,
            )
    opened = [ForeignReader(stream, reader, layout, seed) for reader in layout.readers]
    can_save = opened[0].probe()
    for reader in opened:
        reader.can_save = can_save
    return opened


class ForeignReader:
    """A reader of any SeqIO source. Implements `tasks.pipeline.readers.Reader`."""

    def __init__(self, stream: ForeignStream, reader: int, layout: contract.ReaderRows, seed: int):
        self._stream = stream
        self._reader = reader
        self._layout = layout
        self.state_name = f"reader-{reader:04d}-of-{layout.num_readers:04d}.zip"
        self.can_save = True
        self._open(seed)
        close_at_exit(self)

    def _open(self, seed: int) -> None:
        self._seed = seed
        plan = ReadPlan(seed, self._reader, self._layout.num_readers)
        self._pipeline: Any = _Pipeline(self._stream, self._layout.rows_per_reader, plan)
        self._batches = 0
        self.epoch_counter = EpochCounter()  # Stays empty: the documents of the examples are not known.

    def probe(self) -> bool:
        """Whether TensorFlow can save this pipeline. A generator refuses only once it runs, so a batch is read."""
        iterator = self._pipeline.iterator
        try:
            beginning = _save_iterator(iterator)
            with empty_tasks.named(self._stream.made_while_training(), self._stream.config):
                self._next_element()
            _save_iterator(iterator)
        except readers.ReadingError as error:
            raise readers.failed(error, self._stream.config.name, 0) from error
        except (tf.errors.UnimplementedError, tf.errors.FailedPreconditionError) as error:
            logger.warning(
                "The data position of %s cannot be saved (%s). A restart reads all earlier batches again to find its "
                "place, or, with SaveCheckpointConfig.save_dataset = False, begins with the first, as in T5X; with a "
                "tasks.sources.HuggingFaceSource it resumes at once.",
                self._stream.config.name,
                error.message.partition("} ")[2].partition(" [")[0],
            )
            self._open(self._seed)
            return False
        _restore_iterator(iterator, beginning, "")  # Sooner than another pipeline, which TensorFlow traces for seconds.
        return True

    def _next_element(self) -> dict[str, np.ndarray]:
        try:
            return tf_iterators.next_element(self._pipeline.iterator)
        except StopIteration:  # An endless stream ends only where an epoch gives nothing.
            names = ", ".join(repr(task.name) for task in self._stream.tasks)
            raise readers.ReadingError(
                f"No example can be made of split {self._stream.config.split!r} of a task of {names}: its source is "
                "empty, or its preprocessors drop all examples."
            ) from None

    def __next__(self) -> dict[str, np.ndarray]:
        try:
            batch = self._next_element()
        except readers.ReadingError as error:
            raise readers.failed(error, self._stream.config.name, self._batches) from error
        tasks = self._stream.tasks_of(batch)
        batch.pop("position", None)
        batch.pop("document", None)
        return self._stream.to_model_features(batch) | tasks

    def advance(self) -> None:
        self._batches += 1

    def stop_waiting(self) -> None:
        """Does nothing: a call of TensorFlow's iterator cannot be ended."""

    def close(self) -> None:
        """Ends reading for good."""
        self._pipeline = None

    def join(self, seconds: float) -> None:
        """TensorFlow's threads end with the iterator."""

    def save(self) -> bytes:
        """A zip archive: `position.json` for people, and TensorFlow's checkpoint of the iterator."""
        fingerprint = fingerprints.of_stream(self._stream, self._seed, self._layout.num_readers)
        header = {"batches": self._batches, "fingerprint": fingerprint}
        text = json_text.dumps(header, indent=1, ensure_ascii=False)
        files = _save_iterator(self._pipeline.iterator) if self.can_save else {}
        return _zip({"position.json": text.encode(), **files})

    def check(self, state: bytes) -> None:
        saved = self._header(state)["fingerprint"]
        fingerprints.check(saved, self._stream, self._seed, self._layout.num_readers, self.state_name)

    def restore(self, state: bytes) -> None:
        header = self._header(state)
        # Opened again: a run without a seed keeps the seed that it drew first, data of a hub their commit.
        self._open(header["fingerprint"]["seed"])
        if self.can_save:
            _restore_iterator(self._pipeline.iterator, _unzip(state, self.state_name), self.state_name)
        else:
            logger.warning("Reader %d reads %d batches again to find its place.", self._reader, header["batches"])
            for _ in range(header["batches"]):
                next(self._pipeline.iterator)
        self._batches = header["batches"]

    def _header(self, state: bytes) -> dict[str, Any]:
        where = f"The saved data position {self.state_name} is damaged: position.json"
        header = untrusted_json.parse_object(_unzip(state, self.state_name).get("position.json", b""), where)
        number_ranges.check(f"{where}: batches", header.get("batches"), number_ranges.AT_LEAST_0)
        if not positions.is_fingerprint(header.get("fingerprint")):
            raise ValueError(f"{where} has no fingerprint of readers.")
        return header


class _Pipeline:
    """Its iterator is made when it is first used: TensorFlow traces for seconds, and a resumed run opens it again."""

    def __init__(self, stream: ForeignStream, num_rows: int, plan: ReadPlan):
        self._stream, self._num_rows, self._plan = stream, num_rows, plan

    @functools.cached_property
    def iterator(self) -> Any:
        return iter(self._stream.dataset(self._num_rows, self._plan).prefetch(2))


class DatasetBatches:
    """A `tf.data.Dataset` of a user's own as the training stream. Implements `limba.data.contract.BatchIterator`.

    Its batches are this host's rows under the model's feature names. Its position is saved by TensorFlow where it can
    save the pipeline; otherwise a resumed run reads all earlier batches again. A data set that ends is repeated.

    Raises:
      ValueError: if it is not a `tf.data.Dataset`.
    """

    def __init__(
        self, dataset: tf.data.Dataset, config: contract.DatasetConfig, process_index: int, process_count: int
    ):
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(
                f"train.get_dataset_fn returned a {type(dataset).__name__} for {config.name!r}; it must return a "
                "tf.data.Dataset, or an iterator with save_state and restore_state (limba.data.contract.BatchIterator)."
            )
        self._dataset = dataset.repeat()
        self._state_name = f"dataset-{process_index:03d}-of-{process_count:03d}.zip"
        self._name = config.name
        self._iterator: Any = iter(self._dataset)
        self._batches = 0

    def __iter__(self) -> "DatasetBatches":
        return self

    def __next__(self) -> contract.Batch:
        self._batches += 1
        return {name: value.numpy() for name, value in next(self._iterator).items()}

    def save_state(self) -> Mapping[str, bytes]:
        try:
            files = _save_iterator(self._iterator)
        except (tf.errors.UnimplementedError, tf.errors.FailedPreconditionError) as error:
            logger.warning("The data position of %s cannot be saved (%s).", self._name, error.message.split("\n")[0])
            files = {}
        return {self._state_name: _zip({"batches.json": json_text.dumps(self._batches).encode(), **files})}

    def restore_state(self, state: Mapping[str, bytes]) -> None:
        if self._state_name not in state:
            raise ValueError(
                f"The saved data position has no {self._state_name!r}, only {sorted(state)}; resume with the "
                "get_dataset_fn and the number of hosts that the run began with."
            )
        self._iterator = iter(self._dataset)
        files = _unzip(state[self._state_name], self._state_name)
        where = f"The saved data position {self._state_name} is damaged: batches.json"
        self._batches = untrusted_json.parse(files.pop("batches.json", b""), where)
        number_ranges.check(where, self._batches, number_ranges.AT_LEAST_0)
        if files:
            _restore_iterator(self._iterator, files, self._state_name)
            return
        logger.warning("%s: %d batches are read again to find the place.", self._name, self._batches)
        for _ in range(self._batches):
            next(self._iterator)


def _save_iterator(iterator: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as directory:
        tf.train.Checkpoint(iterator=iterator).write(f"{directory}/iterator")
        return {path.name: path.read_bytes() for path in pathlib.Path(directory).iterdir()}


def _restore_iterator(iterator: Any, files: Mapping[str, bytes], position: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for name, content in files.items():
            pathlib.Path(directory, name).write_bytes(content)
        try:
            tf.train.Checkpoint(iterator=iterator).read(f"{directory}/iterator").assert_consumed()
        except (tf.errors.OpError, AssertionError, IndexError) as error:
            raise ValueError(f"The saved data position {position} is damaged ({cut(str(error))}).") from error


def _zip(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _unzip(state: bytes, name: str) -> dict[str, bytes]:
    """The files of a saved position.

    Raises:
      ValueError: if it is damaged; or unpacks to more than a file that is read at once, or a file of another folder:
        a run may come from somebody else.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(state)) as archive:
            entries = archive.infolist()
            if (size := sum(entry.file_size for entry in entries)) > storage.MOST_BYTES:
                raise ValueError(f"it unpacks to {size:,} bytes")
            if others := [x.filename for x in entries if not is_inside(x.filename) or "/" in x.filename]:
                raise ValueError(f"it has a file {cut(others[0])}")
            return {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(f"The saved data position {name} is damaged ({error}).") from error
