"""Opens tasks and mixtures as the batches that the engine trains and evaluates on (`limba.data.contract`).

Those that need SeqIO are given to the add-on that is for it, which TensorFlow comes with.
"""

import dataclasses
import hashlib
import itertools
import logging
import math
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np

from limba.addons import table
from limba.data import contract
from limba.files import json_text
from limba.tasks.pipeline import converters, fingerprints, readers, stages
from limba.tasks.pipeline.positions import ReadPlan
from limba.tasks.pipeline.readers import CountedReader, OpenBatches, ReadAhead, TrainBatches
from limba.tasks.pipeline.streams import Stream
from limba.tasks.registry.providers import find_provider, tasks_with_split
from limba.tasks.registry.tasks import Task, get_subtasks, is_mixture
from limba.tasks.sources.sharded import ShardedSource

logger = logging.getLogger(__name__)


def get_train_batches(
    config: contract.DatasetConfig,
    feature_converter: Any = "EncDecFeatureConverter",
    process_index: int = 0,
    process_count: int = 1,
    shuffle_buffer_size: int | None = None,
) -> contract.BatchIterator:
    """Opens the training stream of this host, positioned at its beginning.

    `shuffle_buffer_size` is that of all readers together; None takes the task's own.

    Raises:
      ValueError, FileNotFoundError: for whatever is wrong with the task, the corpus, the vocabulary or the lengths.
    """
    streams = [open_stream(stage, feature_converter, shuffle_buffer_size) for stage in config.by_stage()]
    num_readers = config.num_readers
    if num_readers is None:  # The readers of a stage go on in the next.
        common = math.gcd(*(stream.config.batch_size for stream in streams))
        of_all = dataclasses.replace(streams[0], config=dataclasses.replace(streams[0].config, batch_size=common))
        num_readers = of_all.default_num_readers(process_count)
    seed = config.seed
    if seed is None:
        seed = secrets.randbits(31)
        logger.warning("No seed is set for %s: this run draws %d.", config.name, seed)

    def opened(stream: Stream) -> TrainBatches:
        layout = contract.ReaderRows(num_readers, stream.config.batch_size, process_index, process_count)
        return _open_batches(stream, layout, seed)

    if not config.stages:
        return opened(streams[0])
    for stream in streams:
        if not stream.is_counted:
            raise ValueError(
                f"DatasetConfig.stages: {stream.config.name!r} has parts of SeqIO's, whose documents cannot go on in "
                "another stage; register it with tasks.registry."
            )
    return stages.StagedBatches(streams, [0, *(stage.begins for stage in config.stages)], opened)


def _open_batches(stream: Stream, layout: contract.ReaderRows, seed: int) -> TrainBatches:
    """The batches of a stream from its beginning."""
    if stream.is_counted:
        open_batches = _open_processes(stream, layout)
        deals = stream.find_deals(seed, layout.num_readers)
        readers = [CountedReader(stream, reader, layout, seed, open_batches, deals) for reader in layout.readers]
        return TrainBatches(readers, stream)
    return TrainBatches(_of_seqio(stream.config).open_readers(stream, layout, seed), stream)


def _open_processes(stream: Stream, layout: contract.ReaderRows) -> OpenBatches | None:
    """What opens the readers' batches in processes, if the configuration asks for some."""
    num_workers = min(stream.config.num_workers or 0, len(layout.readers))
    if not num_workers:
        return None
    if type(stream) is not Stream:
        raise ValueError(
            f"DatasetConfig.num_workers is {stream.config.num_workers}, and {stream.config.name!r} has parts of "
            "SeqIO's, which are read in this process: set num_workers to 0."
        )
    part = table.part("reader_processes", f"DatasetConfig.num_workers = {stream.config.num_workers}")
    return part.ReaderProcesses(stream, layout.rows_per_reader, num_workers).open


def get_eval_batches(
    config: contract.DatasetConfig,
    feature_converter: Any = "EncDecFeatureConverter",
    process_index: int = 0,
    process_count: int = 1,
) -> contract.EvalBatches:
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
    ordered = dataclasses.replace(config, shuffle=False, seed=config.seed or 0)
    return _evaluation_sets(open_stream(ordered, feature_converter), rows)


def _evaluation_sets(stream: Stream, rows: slice) -> contract.EvalBatches:
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


def open_stream(
    config: contract.DatasetConfig, feature_converter: Any, shuffle_buffer_size: int | None = None
) -> Stream:
    """A checked configuration.

    Raises:
      ValueError, FileNotFoundError: as `get_train_batches`.
    """
    provider = find_provider(config.mixture_or_task_name, config.module)
    kind = kind_of_stream(config, provider, feature_converter)
    return kind.open(config, provider, feature_converter, shuffle_buffer_size)


def kind_of_stream(config: contract.DatasetConfig, provider: Any, feature_converter: Any) -> type[Stream]:
    """What reads a task or mixture; raises ValueError if there is no such feature converter."""
    ours = all(isinstance(x, Task) and isinstance(x.source, ShardedSource) for x in get_subtasks(provider))
    if ours and converters.is_known(feature_converter):
        return Stream
    return _of_seqio(config).kind_of(config, provider, feature_converter)


def _of_seqio(config: contract.DatasetConfig) -> Any:
    return table.part("seqio", f"{config.name!r}, which has parts of SeqIO's,")


def data_facts(config: contract.DatasetConfig) -> dict[str, str]:
    """The facts that all hosts must agree on before they read: `limba.inference.tasks_door.facts`.

    Only the hub is asked, once in a process.
    """
    first, *others = map(_facts_of_stage, config.by_stage())
    return first | {f"{key} (stage {n})": value for n, facts in enumerate(others, 2) for key, value in facts.items()}


def _facts_of_stage(config: contract.DatasetConfig) -> dict[str, str]:
    provider = find_provider(config.mixture_or_task_name, config.module)
    kind = kind_of_stream(config, provider, "EncDecFeatureConverter")
    stream = kind(config, provider, tasks_with_split(provider, config.split), "EncDecFeatureConverter", None)
    fingerprint = fingerprints.of_stream(stream, config.seed, config.num_readers)
    facts = {"task": config.name, "split": config.split, "seed": str(config.seed)}
    for name, task in fingerprint["tasks"].items():
        source = task["source"]
        if isinstance(source, str):  # Another class than ours: only its name is known.
            facts[f"source of {name}"] = source
        elif "commit" in source:
            facts[f"source of {name}"] = f"{source['hub']} at commit {source['commit']}"
        else:
            facts[f"source of {name}"] = f"{len(source['files'])} files of {sum(source['files'].values())} bytes"
        # Hosts may have other files of it.
        size, checksum = task["vocabulary"] = [task["vocabulary"][0], task["vocabulary"][-1]]
        facts[f"vocabulary of {name}"] = f"{size} ids, checksum {checksum:08x}"
    # The rest of the fingerprint: names of files, preprocessors, rates, lengths.
    text = json_text.dumps(fingerprint, sort_keys=True)
    return facts | {"data order": hashlib.sha256(text.encode()).hexdigest()[:16]}
