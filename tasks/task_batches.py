"""Opens SeqIO tasks and mixtures as the batches that the engine trains and evaluates on: `limba.data`'s contract."""

import dataclasses
import hashlib
import json
import logging
import secrets
from collections.abc import Generator, Iterator

import numpy as np
import seqio

from limba import data
from tasks import readers
from tasks.foreign_readers import ForeignReader
from tasks.open_iterators import close_at_exit
from tasks.providers import FeatureConverter, find_provider, tasks_with_split
from tasks.readers import CountedReader, TrainBatches
from tasks.streams import Stream, num_shards

logger = logging.getLogger(__name__)


def get_train_batches(
    config: data.DatasetConfig,
    feature_converter: FeatureConverter = "EncDecFeatureConverter",
    process_index: int = 0,
    process_count: int = 1,
    shuffle_buffer_size: int | None = None,
) -> data.BatchIterator:
    """Opens the training stream of this host, positioned at its beginning.

    Args:
      config: what to read.
      feature_converter: a SeqIO feature converter, or its name.
      process_index: this host.
      process_count: the number of hosts.
      shuffle_buffer_size: examples in the buffers of all readers together; None takes the task's own.

    Raises:
      ValueError, FileNotFoundError: for whatever is wrong with the task, the corpus, the vocabulary or the lengths.
    """
    stream = Stream.open(config, feature_converter, shuffle_buffer_size)
    num_readers = config.num_readers or stream.default_num_readers(process_count)
    layout = data.ReaderLayout(num_readers, config.batch_size, process_index, process_count)
    seed = config.seed
    if seed is None:
        seed = secrets.randbits(31)
        logger.warning("No seed is set for %s: this run draws %d.", config.name, seed)
    if stream.is_counted:
        return TrainBatches([CountedReader(stream, reader, layout, seed) for reader in layout.readers], stream)
    _say_what_cannot_be_done(stream, layout)
    readers = [ForeignReader(stream, reader, layout, seed) for reader in layout.readers]
    can_save = readers[0].probe()
    for reader in readers:
        reader.can_save = can_save
    return TrainBatches(readers, stream)


def get_eval_batches(
    config: data.DatasetConfig,
    feature_converter: FeatureConverter = "EncDecFeatureConverter",
    process_index: int = 0,
    process_count: int = 1,
) -> data.EvalBatches:
    """The evaluation sets of a task; or of each task of a mixture, and of the mixture itself: one pass.

    A task comes in the order of its files. A mixture draws from its tasks at their rates until one of them has ended.
    Every host reads everything and keeps its rows of each batch, so all hosts have equally many batches. A seed of None
    means 0: the same corruption in every evaluation.

    Raises:
      ValueError, FileNotFoundError: as `get_train_batches`.
    """
    if config.batch_size % process_count:
        raise ValueError(f"An evaluation batch of {config.batch_size} does not divide by {process_count} hosts.")
    rows_per_host = config.batch_size // process_count
    rows = slice(process_index * rows_per_host, (process_index + 1) * rows_per_host)
    stream = Stream.open(dataclasses.replace(config, shuffle=False, seed=config.seed or 0), feature_converter, None)
    sets = {task.name: EvalSet(stream, task, rows) for task in stream.tasks}
    if isinstance(stream.provider, seqio.Mixture):
        sets[stream.provider.name] = EvalSet(stream, None, rows)
    return sets


def data_facts(config: data.DatasetConfig) -> dict[str, str]:
    """What hosts must agree on before they read together: `limba.data.facts`.

    Only the hub is asked, and only by the first who needs its answer in this process.
    """
    provider = find_provider(config.mixture_or_task_name, config.module)
    stream = Stream(config, provider, tasks_with_split(provider, config.split), seqio.EncDecFeatureConverter, None)
    fingerprint = stream.fingerprint(config.seed, config.num_readers)
    facts = {"task": config.name, "split": config.split, "seed": str(config.seed)}
    for name, task in fingerprint["tasks"].items():
        source = task["source"]
        if isinstance(source, str):  # Not ours, and nothing more is known of it.
            facts[f"source of {name}"] = source
        elif "commit" in source:
            facts[f"source of {name}"] = f"{source['hub']} at commit {source['commit']}"
        else:
            facts[f"source of {name}"] = f"{len(source['files'])} files of {sum(source['files'].values())} bytes"
        size, checksum = task["vocabulary"]
        facts[f"vocabulary of {name}"] = f"{size} ids, checksum {checksum:08x}"
    # What the words above leave out: names of files, preprocessors, rates, lengths.
    text = json.dumps(fingerprint, sort_keys=True)
    return facts | {"data order": hashlib.sha256(text.encode()).hexdigest()[:16]}


class EvalSet:
    """The batches of one task, or of the whole mixture (`task` is None): they end, and can be iterated again."""

    def __init__(self, stream: Stream, task: seqio.Task | None, rows: slice):
        self._stream = stream
        self._task = task
        self._rows = rows
        self._use_cache = stream.config.use_memory_cache
        self._cache: list[data.Batch] = []
        self._remaining: Iterator[data.Batch] | None = None

    def __iter__(self) -> Iterator[data.Batch]:
        if not self._use_cache:
            yield from close_at_exit(self._read())
            return
        if self._remaining is None:
            self._remaining = close_at_exit(self._read())
        index = 0
        # The consumer may stop early, so the first pass can take several iterations.
        while index < len(self._cache) or self._cache_next():
            yield self._cache[index]
            index += 1

    def _cache_next(self) -> bool:
        assert self._remaining is not None
        batch = next(self._remaining, None)
        if batch is not None:
            self._cache.append(batch)
        return batch is not None

    def _read(self) -> Generator[data.Batch, None, None]:
        stream = self._stream
        seed = stream.config.seed
        assert seed is not None
        batch_size = stream.config.batch_size
        batches = stream.batches(batch_size, seed, reader=0, num_readers=1, num_epochs=1, task=self._task)
        for batch in readers.read(batches.prefetch(2), stream.config.name, "batches"):
            missing = batch_size - len(next(iter(batch.values())))
            full = {name: np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) for name, x in batch.items()}
            yield {name: value[self._rows] for name, value in stream.to_model_features(full).items()}


def _say_what_cannot_be_done(stream: Stream, layout: data.ReaderLayout) -> None:
    if layout.num_readers == 1:
        return
    for task in stream.tasks:
        shards = num_shards(task, stream.config)
        if shards is not None and shards < layout.num_readers:
            logger.warning(
                "%s has too few shards (%d) for %d readers: each of them reads everything and keeps its share.",
                task.name,
                shards,
                layout.num_readers,
            )
