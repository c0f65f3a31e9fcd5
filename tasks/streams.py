"""A checked configuration of a SeqIO task or mixture, and the `tf.data` pipelines of its readers and evaluations.

A reader's pipeline is the documents of its pieces of the source, the task's preprocessors, a shuffle buffer, and its
rows of the global batch. It is a function of configuration, seed and reader.
"""

import dataclasses
import functools
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from limba import data
from tasks import blocks, fingerprints, positions, preprocessors, sources, supervised_examples
from tasks.positions import BEGINNING, Place
from tasks.providers import FeatureConverter, converter_class, find_provider, tasks_with_split

logger = logging.getLogger(__name__)

# Documents that are preprocessed together where no preprocessor says how many: as many as T5's own concatenate.
_DOCUMENTS_PER_GROUP = 128
_CHOICES_PER_BLOCK = 1024


@dataclasses.dataclass(frozen=True)
class Stream:
    """A checked configuration: which tasks are read, and how their examples become batches."""

    config: data.DatasetConfig
    provider: seqio.Task | seqio.Mixture
    tasks: list[seqio.Task]
    converter: type[seqio.FeatureConverter]
    shuffle_buffer_size: int | None

    @classmethod
    def open(
        cls, config: data.DatasetConfig, feature_converter: FeatureConverter, shuffle_buffer_size: int | None
    ) -> "Stream":
        provider = find_provider(config.mixture_or_task_name, config.module)
        if config.task_feature_lengths is None:
            raise ValueError(
                f"DatasetConfig.task_feature_lengths of {config.name!r} is None, which only inference evaluation can "
                "do with: bind TASK_FEATURE_LENGTHS, such as {'inputs': 512, 'targets': 114}."
            )
        tasks = tasks_with_split(provider, config.split)
        if not tasks:
            raise ValueError(
                f"{config.name!r} has no split {config.split!r}; it has "
                f"{', '.join(map(repr, sorted(provider.splits)))}."
            )
        for task in seqio.get_subtasks(provider):
            if task not in tasks:
                logger.warning("Task %s has no split %r and is left out.", task.name, config.split)
        _check_lengths(tasks, config.task_feature_lengths)
        stream = cls(config, provider, tasks, converter_class(feature_converter), shuffle_buffer_size)
        for task in tasks:
            if reads_cache(task, config):
                check_cached(task)
            elif config.use_cached:
                logger.info("Task %s cannot be cached: its examples are made while training.", task.name)
            if stream.reads_chunks(task):
                task.source.check(config.split)
                supervised_examples.check_task(task, config.split, config.task_feature_lengths)
        return stream

    @property
    def _lengths(self) -> dict[str, int]:
        return dict(self.config.task_feature_lengths or {})

    @property
    def _converts_in_numpy(self) -> bool:
        return self.converter is seqio.EncDecFeatureConverter and not self.config.pack

    def default_num_readers(self, process_count: int) -> int:
        """As many as read in parallel without reading anything twice; at least one per host."""
        readers = data.default_num_readers(self.config.batch_size)
        shards = [num_shards(task, self.config) for task in self.tasks]
        return process_count if any(n is not None and n < readers for n in shards) else readers

    def reads_chunks(self, task: seqio.Task) -> bool:
        return isinstance(task.source, sources.ShardedSource) and not reads_cache(task, self.config)

    @functools.cached_property
    def is_counted(self) -> bool:
        """Whether a position is a few counters: all sources can begin anywhere."""
        return all(self.reads_chunks(task) for task in self.tasks)

    def _makes_rows(self, task: seqio.Task) -> bool:
        """Whether a task's examples can be made as blocks of rows."""
        return (
            self.is_counted
            and self._converts_in_numpy
            and len(task.preprocessors) == 1
            and isinstance(task.preprocessors[0], preprocessors.Denoise)
            and {"inputs", "targets"} <= set(task.output_features)
        )

    def batches(
        self,
        rows: int,
        seed: int,
        reader: int,
        num_readers: int,
        num_epochs: int | None = None,
        place: Place = BEGINNING,
        task: seqio.Task | None = None,
    ) -> tf.data.Dataset:
        """Batches of a reader's rows and their place, of one task or of all of them at their rates.

        With a number of epochs they end when a task does, and the last batch may be shorter.
        """
        tasks = self.tasks if task is None else [task]
        arguments = (seed, reader, num_readers, num_epochs, place)
        if len(tasks) == 1 and self._makes_rows(tasks[0]):
            return _with_options(self._blocks(tasks[0], *arguments).rebatch(rows))
        examples = self._mixed_examples(*arguments) if len(tasks) > 1 else self.examples(tasks[0], *arguments)
        return _with_options(self._batch(examples, rows, place))

    def _blocks(
        self, task: seqio.Task, seed: int, reader: int, num_readers: int, num_epochs: int | None, place: Place
    ) -> tf.data.Dataset:
        number = self.tasks.index(task)
        start = place.of(number)
        denoise = dataclasses.replace(
            task.preprocessors[0], output_features=task.output_features, sequence_length=self._lengths
        )
        groups = self._chunks(task, seed, reader, num_readers, num_epochs, start).rebatch(denoise.documents_per_batch)
        buffer_size = self._buffer_size(task, num_readers)
        key = (_derive_seed(seed, reader, number), number)
        return blocks.rows(groups, denoise, self._lengths, buffer_size, key, start)

    def _chunks(
        self,
        task: seqio.Task,
        seed: int,
        reader: int,
        num_readers: int,
        num_epochs: int | None,
        start: positions.Position,
    ) -> tf.data.Dataset:
        return task.source.get_chunks(
            self.config.split,
            self.config.shuffle,
            seed,
            seqio.ShardInfo(reader, num_readers),
            num_epochs=num_epochs,
            start=start.document,
        )

    def _buffer_size(self, task: seqio.Task, num_readers: int) -> int:
        size = self.shuffle_buffer_size or task.shuffle_buffer_size
        return -(-size // num_readers) if size and self.config.shuffle else 1

    def examples(
        self,
        task: seqio.Task,
        seed: int,
        reader: int,
        num_readers: int,
        num_epochs: int | None,
        place: Place = BEGINNING,
    ) -> tf.data.Dataset:
        """A reader's examples of one task: its features, and `position`, (task, *Position) of what follows or -1."""
        start = place.of(self.tasks.index(task))
        buffer_size = self._buffer_size(task, num_readers)
        if not self.reads_chunks(task):
            return self._foreign_examples(task, seed, reader, num_readers, num_epochs, buffer_size)
        chunks = self._chunks(task, seed, reader, num_readers, num_epochs, start)
        example_seed = _derive_seed(seed, reader, self.tasks.index(task))
        examples = self._preprocess_in_groups(task, chunks, example_seed).skip(start.example)
        if self.is_counted:
            return positions.shuffle_in_blocks(examples, buffer_size, example_seed).skip(start.taken)
        # Saved by TensorFlow, which saves a buffer, but no windows.
        examples = examples.map(functools.partial(positions.without_position, self.tasks.index(task)))
        return examples.shuffle(buffer_size, seed=example_seed) if buffer_size > 1 else examples

    def _preprocess_in_groups(self, task: seqio.Task, chunks: tf.data.Dataset, seed: int) -> tf.data.Dataset:
        """Runs the preprocessors on so many documents at a time, so that a stream can begin with any group.

        What is random in a group follows from `seed` and its first document. The `position` of an example says what the
        group's first document is, and the number of the example in the group.
        """
        number = self.tasks.index(task)
        steps = [step for step in task.preprocessors if isinstance(step, preprocessors.Denoise)]
        group_size = max((step.documents_per_batch for step in steps), default=_DOCUMENTS_PER_GROUP)

        def examples_of_group(group):
            first = tf.concat([tf.constant([number], tf.int64), group["document"][0]], axis=0)
            with positions.random_datasets_from(positions.hash_numbers(first)):
                dataset = task.preprocess_precache(tf.data.Dataset.from_tensor_slices(group), seed=seed)
                dataset = task.preprocess_postcache(dataset, sequence_length=self._lengths, seed=seed)
            # A group of a small corpus goes through several epochs.
            keeps_document = "document" in dataset.element_spec
            examples = self._keep_features(task, dataset)
            if not keeps_document:
                examples = examples.map(lambda example: {**example, "epoch": first[1]})
            examples = examples.enumerate()
            return examples.map(lambda i, example: {**example, "position": tf.concat([first, [i]], axis=0)})

        return chunks.rebatch(group_size).flat_map(examples_of_group)

    def _keep_features(self, task: seqio.Task, dataset: tf.data.Dataset) -> tf.data.Dataset:
        lengths = self._lengths
        names = [name for name in lengths if name in dataset.element_spec]
        if self._converts_in_numpy and not {"inputs", "targets"} <= set(names):
            raise ValueError(f"EncDecFeatureConverter needs inputs and targets; task {task.name!r} makes {names}.")
        trims = self.config.trim_output_features

        def keep(example):
            epoch = example["document"][0] if "document" in example else tf.constant(-1, tf.int64)
            return {n: example[n][: lengths[n]] if trims else example[n] for n in names} | {"epoch": epoch}

        return dataset.map(keep)

    def _foreign_examples(
        self, task: seqio.Task, seed: int, reader: int, num_readers: int, num_epochs: int | None, buffer_size: int
    ) -> tf.data.Dataset:
        """The examples of a source that is not ours, or of SeqIO's offline cache."""
        config = self.config
        number = self.tasks.index(task)
        dataset = task.get_dataset(
            self._lengths,
            config.split,
            config.use_cached,
            # The buffer is below, for all sources; SeqIO shuffles the files of this one.
            shuffle=config.shuffle,
            shuffle_buffer_size=1,
            # All readers need one order of files, since they may take every n-th example of it.
            seed=_derive_seed(seed, number),
            shard_info=seqio.ShardInfo(reader, num_readers) if num_readers > 1 else None,
            num_epochs=num_epochs,
            trim_output_features=False,
            try_in_mem_cache=False,
        )
        examples = self._keep_features(task, dataset).map(
            functools.partial(positions.without_position, self.tasks.index(task))
        )
        return examples.shuffle(buffer_size, seed=_derive_seed(seed, reader, number)) if buffer_size > 1 else examples

    def _mixed_examples(
        self, seed: int, reader: int, num_readers: int, num_epochs: int | None, place: Place
    ) -> tf.data.Dataset:
        """A reader's examples of all tasks at their rates, until a task ends; without a number of epochs none does."""
        arguments = (seed, reader, num_readers, num_epochs, place)
        datasets = [
            self._blocks(task, *arguments).unbatch() if self._makes_rows(task) else self.examples(task, *arguments)
            for task in self.tasks
        ]
        assert isinstance(self.provider, seqio.Mixture)
        rates = [self.provider.get_rate(task) for task in self.tasks]
        bounds = np.cumsum(rates) / sum(rates)
        choice_seed = _derive_seed(seed, reader, len(datasets))

        def choices(block):
            values = tf.random.stateless_uniform([_CHOICES_PER_BLOCK], [choice_seed, block], dtype=tf.float64)
            return tf.searchsorted(bounds[:-1], values, side="right", out_type=tf.int64)

        block, skipped = divmod(place.examples, _CHOICES_PER_BLOCK)
        chosen = tf.data.Dataset.range(block, 2**62).map(choices).unbatch().skip(skipped)
        return tf.data.Dataset.choose_from_datasets(datasets, chosen, stop_on_empty_dataset=True)

    def _batch(self, examples: tf.data.Dataset, rows: int, place: Place) -> tf.data.Dataset:
        """Batches of `rows` rows and their place; `place` is where `examples` begin."""
        lengths = self._lengths
        if self._converts_in_numpy:
            shapes = {"position": [positions.POSITION_SIZE], "epoch": []} | {
                name: [lengths[name]] for name in ("inputs", "targets")
            }
            return examples.padded_batch(rows, padded_shapes=shapes)
        converter = self.converter(pack=self.config.pack)
        if self.is_counted:
            groups = positions.convert_in_groups(examples, converter, lengths, place, len(self.tasks))
            return groups.skip(place.rows).batch(rows)
        return converter(examples, lengths).batch(rows)

    def tasks_of(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """`example_tasks` of a mixture's batch, made of what `examples` calls `position`; packed rows have none."""
        if len(self.tasks) == 1 or "position" not in batch:
            return {}
        return {"example_tasks": np.eye(len(self.tasks), dtype=np.int32)[batch["position"][:, 0]]}

    @functools.cached_property
    def task_groups(self) -> dict[str, list[int]]:
        """What losses are reported by: the tasks, and the mixtures and objectives that several of them share."""
        if len(self.tasks) == 1 or not self._converts_in_numpy:
            return {}
        assert isinstance(self.provider, seqio.Mixture)
        groups: dict[str, list[int]] = {}
        for number, task in enumerate(self.tasks):
            for step in task.preprocessors:
                if isinstance(step, preprocessors.Denoise):
                    groups.setdefault(f"objective_{step.objective.name}", []).append(number)
        for name in self.provider.rate_per_task_name:
            if name in seqio.MixtureRegistry.names():
                inner = {task.name for task in seqio.MixtureRegistry.get(name).tasks}
                groups[name] = [number for number, task in enumerate(self.tasks) if task.name in inner]
        # One that all tasks share, or that a single task has, says nothing new.
        groups = {name: numbers for name, numbers in groups.items() if 1 < len(numbers) < len(self.tasks)}
        return {task.name: [number] for number, task in enumerate(self.tasks)} | groups

    def to_model_features(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._converts_in_numpy:
            return data.encoder_decoder_features(batch["inputs"], batch["targets"])
        return {k: v.astype(np.int32) if np.issubdtype(v.dtype, np.integer) else v for k, v in batch.items()}

    def keep_revisions(self, saved: Mapping[str, Any]) -> None:
        """Goes back to the revisions of data sets that a saved fingerprint names, where their names have moved on."""
        for task in self.tasks:
            source = saved["tasks"].get(task.name, {}).get("source")
            if self.reads_chunks(task) and isinstance(source, Mapping):
                task.source.keep_revision(source)

    def fingerprint(self, seed: int | None, num_readers: int | None) -> dict[str, Any]:
        """What a saved position belongs to: with any of it changed, it would mean other batches."""
        config = self.config
        return {
            "mixture_or_task_name": config.name,
            "split": config.split,
            "seed": seed,
            "shuffle": config.shuffle,
            "shuffle_buffer_size": self.shuffle_buffer_size or [task.shuffle_buffer_size for task in self.tasks],
            "batch_size": config.batch_size,
            "num_readers": num_readers,
            "task_feature_lengths": self._lengths,
            "pack": config.pack,
            "feature_converter": self.converter.__name__,
            "tasks": {task.name: self._fingerprint_of_task(task) for task in self.tasks},
        }

    def _fingerprint_of_task(self, task: seqio.Task) -> dict[str, Any]:
        rate = self.provider.get_rate(task) if isinstance(self.provider, seqio.Mixture) else 1.0
        return {
            "rate": rate,
            "source": task.source.fingerprint(self.config.split)
            if self.reads_chunks(task)
            else type(task.source).__name__,
            "preprocessors": [fingerprints.describe(step) for step in task.preprocessors],
            "vocabulary": fingerprints.of_vocabulary(task.output_features["targets"].vocabulary),
        }


def _with_options(batches: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = True
    # Random seeds and NumPy functions count as external state; ours are functions of their arguments.
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    # Autotuning changes buffers, whose contents belong to a position that TensorFlow saves.
    options.autotune.enabled = False
    return batches.with_options(options)


def num_shards(task: seqio.Task, config: data.DatasetConfig) -> int | None:
    """Into how many parts readers can split a task's source; None if into any number."""
    if reads_cache(task, config) or task.source.supports_arbitrary_sharding:
        return None
    return len(task.source.list_shards(config.split))


def _check_lengths(tasks: list[seqio.Task], lengths: Mapping[str, int]) -> None:
    longest = 0
    for task in tasks:
        missing = [name for name in task.output_features if name not in lengths]
        if missing:
            raise ValueError(f"task_feature_lengths {dict(lengths)} has no length for {missing} of task {task.name!r}.")
        for step in task.preprocessors:
            if not isinstance(step, preprocessors.Denoise):
                continue
            step.check(task.output_features, lengths)
            needed = step.lengths(task.output_features, lengths)["targets"]
            if lengths["targets"] < needed:
                where = _where(task, lengths, needed)
                raise ValueError(f"{where}, and {lengths['targets']} would cut them; set targets to {needed}.")
            if needed > longest:
                longest, where = needed, _where(task, lengths, needed)
    waste = 100 * (lengths["targets"] - longest) / lengths["targets"] if longest else 0
    # The tokens of a mode make windows a little shorter; of a mixture, the longest targets count.
    if waste >= 1:
        logger.warning(
            "%s, and %d wastes %.0f%% of the decoder on padding; set it to %d.",
            *(where, lengths["targets"], waste, longest),
        )


def _where(task: seqio.Task, lengths: Mapping[str, int], needed: int) -> str:
    return f"task_feature_lengths of {task.name!r}: {lengths.get('inputs', 0)} inputs are {needed} targets"


def reads_cache(task: seqio.Task, config: data.DatasetConfig) -> bool:
    """Whether a task's offline cache is read: as in SeqIO, only of tasks with a `CacheDatasetPlaceholder`."""
    return config.use_cached and task.supports_caching


def check_cached(task: seqio.Task) -> None:
    """Raises ValueError if a task's offline cache is asked for and not there."""
    if task.cache_dir is None:
        places = ", ".join(seqio.get_global_cache_dirs()) or "no folder is named"
        raise ValueError(
            f"Task {task.name!r} has no offline cache ({places}), and DatasetConfig.use_cached asks for it. Make its "
            "examples while training with --gin.USE_CACHED_TASKS=False; or cache it with seqio_cache_tasks and name "
            "the folder, --seqio_additional_cache_dirs=FOLDER."
        )


def _derive_seed(*key: int) -> int:
    return int(np.random.default_rng(key).integers(2**30))
