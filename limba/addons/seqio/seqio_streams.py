"""Streams with parts that need TensorFlow: SeqIO's preprocessors, feature converters and sources."""

import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from limba.addons.seqio import empty_tasks, registry_copies, tf_iterators
from limba.data import contract
from limba.tasks.pipeline import converters
from limba.tasks.pipeline.positions import POSITION_SIZE, ReadPlan
from limba.tasks.pipeline.streams import Stream, derive_seed, group_size, rebatch
from limba.tasks.registry import Task
from limba.tasks.registry.rows import Columns
from limba.tasks.registry.tasks import get_subtasks
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.supervised import row_preprocessor

logger = logging.getLogger(__name__)

_EXAMPLES_PER_BLOCK = 64
_CHOICES_PER_BLOCK = 1024


def kind_of(config: contract.DatasetConfig, provider: Any, feature_converter: Any) -> type[Stream]:
    """The kind of stream for a task or mixture.

    Raises:
      ValueError: if there is no such feature converter.
    """
    converter_class(feature_converter)
    is_counted = all(reads_documents(task, config) for task in get_subtasks(provider))
    return DocumentStream if is_counted else ForeignStream


def reads_documents(task: Any, config: contract.DatasetConfig) -> bool:
    """Whether a task's documents are read by their numbers: from a source of ours, and no offline cache."""
    return isinstance(task.source, ShardedSource) and not reads_cache(task, config)


def reads_cache(task: Any, config: contract.DatasetConfig) -> bool:
    """Whether a task's offline cache is read: as in SeqIO, only of tasks with a `CacheDatasetPlaceholder`."""
    return config.use_cached and task.supports_caching


def may_be_endless(task: Any, config: contract.DatasetConfig) -> bool:
    """Whether a task's source is a user's own, and no library's of which it is known that it ends."""
    if reads_documents(task, config) or reads_cache(task, config):
        return False
    return not isinstance(task.source, seqio.TfdsDataSource | seqio.FileDataSource)


def converter_class(feature_converter: Any) -> type[seqio.FeatureConverter]:
    """SeqIO's feature converter of a name; a class is itself.

    Raises:
      ValueError: if there is none of that name.
    """
    if not isinstance(feature_converter, str):
        return feature_converter
    if not feature_converter.endswith("FeatureConverter") or not hasattr(seqio, feature_converter):
        raise converters.unknown(feature_converter, (x for x in dir(seqio) if x.endswith("FeatureConverter")))
    return getattr(seqio, feature_converter)


class DocumentStream(Stream):
    """A stream of sources that can begin anywhere, whose tasks or converter are SeqIO's."""

    def _examples_in_order(self, task: Any, plan: ReadPlan, seed: int) -> Iterator[Columns]:
        if isinstance(task, Task):
            return super()._examples_in_order(task, plan, seed)
        return self._examples_of_seqio(task, plan, seed)

    def _examples_of_seqio(self, task: seqio.Task, plan: ReadPlan, seed: int) -> Iterator[Columns]:
        """The blocks of a task whose preprocessors run on groups of documents, as `streams.examples` makes them.

        Randomness in a group follows from `seed` and its first document.
        """
        number = self.tasks.index(task)
        chunks = self._chunks(task, plan)
        columns = {
            name: tf.TensorSpec([None], tf.string if dtype is object else tf.dtypes.as_dtype(dtype))
            for name, dtype in chunks.dtypes.items()
        }
        groups = tf.data.Dataset.from_generator(
            lambda: (
                (group.columns, group.document[0])
                for group in rebatch(chunks.documents(plan.num_epochs), group_size(task))
            ),
            output_signature=(columns, tf.TensorSpec([3], tf.int64)),
        )

        def examples_of_group(columns: Mapping[str, tf.Tensor], document: tf.Tensor) -> tf.data.Dataset:
            first = tf.concat([tf.constant([number], tf.int64), document], axis=0)
            with tf_iterators.random_datasets_from(tf_iterators.hash_numbers(first)):
                dataset = task.preprocess_precache(tf.data.Dataset.from_tensor_slices(columns), seed=seed)
                dataset = task.preprocess_postcache(dataset, sequence_length=self._lengths, seed=seed)
            # Which document an example comes from is not known: those of a group count for the epoch of its first.
            return (
                keep_features(self, task, dataset)
                .enumerate()
                .map(lambda i, example: {**example, "document": document, "position": tf.concat([first, [i]], axis=0)})
            )

        examples = groups.flat_map(examples_of_group)
        shapes = {name: [length] for name, length in self._lengths.items() if name in examples.element_spec}
        shapes |= {"position": [POSITION_SIZE - 1], "document": [3]}
        padded = examples.padded_batch(_EXAMPLES_PER_BLOCK, padded_shapes=shapes)
        blocks = tf_iterators.read(tf_iterators.in_order(padded))
        if plan.reader == 0:
            with empty_tasks.named([task], self.config):
                yield from itertools.islice(blocks, 1)
        yield from blocks

    def _convert(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if converters.is_known(self.feature_converter):
            return super()._convert(features)
        lengths = {name: np.count_nonzero(values, axis=1) for name, values in features.items()}
        ragged = {name: tf.RaggedTensor.from_tensor(values, lengths[name]) for name, values in features.items()}
        examples = tf.data.Dataset.from_tensor_slices(ragged).map(
            lambda example: {name: tf.ensure_shape(tf.convert_to_tensor(x), [None]) for name, x in example.items()}
        )
        converter = converter_class(self.feature_converter)(pack=self.config.pack)
        made = list(converter(examples, self._lengths).as_numpy_iterator())
        return {name: np.stack([row[name] for row in made]) for name in made[0]}


class ForeignStream(Stream):
    """A stream whose position only TensorFlow can save: of a source that is not ours, or SeqIO's offline cache."""

    is_counted = False

    def _check_task(self, task: Any) -> None:
        if reads_cache(task, self.config):
            check_cached(task)
        elif self.config.use_cached:
            logger.info("Task %s cannot be cached: its examples are made while training.", task.name)
        if reads_documents(task, self.config):
            task.source.check(self.config.split)
            row_preprocessor.check_task(task, self.config.split, self.config.task_feature_lengths)

    def made_while_training(self) -> list[Any]:
        """The tasks whose examples SeqIO makes of documents, and does not read from an offline cache."""
        return [task for task in self.tasks if not (isinstance(task, Task) or reads_cache(task, self.config))]

    def reads_chunks(self, task: Any) -> bool:
        return reads_documents(task, self.config)

    def may_be_endless(self, task: Any = None) -> bool:
        return any(may_be_endless(x, self.config) for x in (self.tasks if task is None else [task]))

    def default_num_readers(self, process_count: int) -> int:
        readers = contract.default_num_readers(self.config.batch_size)
        shards = [num_shards(task, self.config) for task in self.tasks]
        return process_count if any(n is not None and n < readers for n in shards) else readers

    def batches(self, num_rows: int, plan: ReadPlan, task: Any = None) -> Iterator[Columns]:
        return tf_iterators.read(self.dataset(num_rows, plan, task).prefetch(2))

    def dataset(self, num_rows: int, plan: ReadPlan, task: Any = None) -> tf.data.Dataset:
        """`batches` as a pipeline; `position` has only the number of the task."""
        examples = (
            self._examples_of_all(plan)
            if task is None and len(self.tasks) > 1
            else self._examples_of(self.tasks[0] if task is None else task, plan)
        )
        if self._converts_rows:
            shapes = {name: [self._lengths[name]] for name in ("inputs", "targets")}
            shapes |= {"position": [POSITION_SIZE], "document": [3]}
            batches = examples.padded_batch(num_rows, padded_shapes=shapes)
        else:
            converter = converter_class(self.feature_converter)(pack=self.config.pack)
            batches = converter(examples, self._lengths).batch(num_rows)
        return tf_iterators.in_order(batches)

    def examples(self, task: Any, plan: ReadPlan) -> Iterator[Columns]:
        examples = self._examples_of(task, plan)
        shapes = {name: [length] for name, length in self._lengths.items() if name in examples.element_spec}
        shapes |= {"position": [POSITION_SIZE], "document": [3]}
        return tf_iterators.read(
            tf_iterators.in_order(examples.padded_batch(_EXAMPLES_PER_BLOCK, padded_shapes=shapes))
        )

    def _examples_of(self, task: Any, plan: ReadPlan) -> tf.data.Dataset:
        number, config = self.tasks.index(task), self.config
        with tf_iterators.building:
            dataset = registry_copies.seqio_provider(task).get_dataset(
                self._lengths,
                config.split,
                config.use_cached,
                # The shuffle buffer comes later, for all sources; SeqIO shuffles the files of this one.
                shuffle=config.shuffle,
                shuffle_buffer_size=1,
                # All readers need one order of files, since they may take every n-th example of it.
                seed=derive_seed(plan.seed, number),
                shard_info=seqio.ShardInfo(plan.reader, plan.num_readers) if plan.num_readers > 1 else None,
                num_epochs=plan.num_epochs,
                trim_output_features=False,
                try_in_mem_cache=False,
            )
        unknown = tf.constant([number] + [-1] * (POSITION_SIZE - 1), tf.int64)
        examples = keep_features(self, task, dataset).map(
            lambda example: {**example, "document": unknown[1:4], "position": unknown}
        )
        # Saved by TensorFlow, which saves a buffer.
        buffer_size = self._buffer_size(task, plan.num_readers)
        seed = derive_seed(plan.seed, plan.reader, number)
        return examples.shuffle(buffer_size, seed=seed) if buffer_size > 1 else examples

    def _examples_of_all(self, plan: ReadPlan) -> tf.data.Dataset:
        """All tasks at their rates, until a task ends; without a number of epochs none does."""
        datasets = [self._examples_of(task, plan) for task in self.tasks]
        rates = [self.provider.get_rate(task) for task in self.tasks]
        bounds = np.cumsum(rates) / sum(rates)
        choice_seed = derive_seed(plan.seed, plan.reader, len(datasets))

        def choices(block: tf.Tensor) -> tf.Tensor:
            values = tf.random.stateless_uniform([_CHOICES_PER_BLOCK], [choice_seed, block], dtype=tf.float64)
            return tf.searchsorted(bounds[:-1], values, side="right", out_type=tf.int64)

        chosen = tf.data.Dataset.range(2**62).map(choices).unbatch()
        return tf.data.Dataset.choose_from_datasets(datasets, chosen, stop_on_empty_dataset=True)


def keep_features(stream: Stream, task: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The features that have a length.

    Raises:
      ValueError: if the model needs features that the task does not make.
    """
    lengths = dict(stream.config.task_feature_lengths or {})
    names = [name for name in lengths if name in dataset.element_spec]
    if stream._converts_rows and not {"inputs", "targets"} <= set(names):
        raise ValueError(f"EncDecFeatureConverter needs inputs and targets; task {task.name!r} makes {names}.")
    trims = stream.config.trim_output_features

    def keep(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {n: example[n][: lengths[n]] if trims else example[n] for n in names}

    return dataset.map(keep)


def num_shards(task: Any, config: contract.DatasetConfig) -> int | None:
    """Into how many parts readers can split a task's source; None if into any number."""
    if reads_cache(task, config) or task.source.supports_arbitrary_sharding:
        return None
    try:
        return len(task.source.list_shards(config.split))
    except KeyError as error:  # TensorFlow Datasets has no files of it.
        raise ValueError(f"The files of task {task.name!r} cannot be listed: {error.args[0]}") from error


def check_cached(task: Any) -> None:
    """Raises ValueError if a task's offline cache is asked for and not there."""
    if task.cache_dir is None:
        places = ", ".join(seqio.get_global_cache_dirs()) or "no folder is named"
        raise ValueError(
            f"Task {task.name!r} has no offline cache ({places}), and DatasetConfig.use_cached asks for it. Make its "
            "examples while training with --gin.USE_CACHED_TASKS=False; or cache it with seqio_cache_tasks "
            "(it needs `pip install 'seqio[cache-tasks]'`) and name the folder, --seqio_additional_cache_dirs=FOLDER."
        )
