"""A checked configuration of a SeqIO task or mixture, and the `tf.data` pipelines of its readers and evaluations.

A reader's pipeline is the documents of its pieces of the source, the task's preprocessors, a shuffle buffer, and its
rows of the global batch. It is a function of configuration, seed and reader.
"""

import dataclasses
import logging
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from limba import data
from tasks import preprocessors, sources
from tasks.providers import FeatureConverter, converter_class, find_provider

logger = logging.getLogger(__name__)

# The accelerators belong to JAX.
if tf.config.get_visible_devices("GPU"):
    tf.config.set_visible_devices([], "GPU")


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
        tasks = [task for task in seqio.get_subtasks(provider) if config.split in task.splits]
        if not tasks:
            raise ValueError(
                f"{config.name!r} has no split {config.split!r}; it has "
                f"{', '.join(map(repr, sorted(provider.splits)))}."
            )
        for task in seqio.get_subtasks(provider):
            if task not in tasks:
                logger.warning("Task %s has no split %r and is left out.", task.name, config.split)
        for task in tasks:
            _check_lengths(task, config.task_feature_lengths)
        stream = cls(config, provider, tasks, converter_class(feature_converter), shuffle_buffer_size)
        for task in tasks:
            if reads_cache(task, config):
                check_cached(task)
            elif config.use_cached:
                logger.info("Task %s cannot be cached: its examples are made while training.", task.name)
            if stream.reads_chunks(task):
                task.source.check(config.split)
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
        return isinstance(task.source, sources.HuggingFaceSource) and not reads_cache(task, self.config)

    def examples(
        self, task: seqio.Task, seed: int, reader: int, num_readers: int, num_epochs: int | None
    ) -> tf.data.Dataset:
        """A reader's examples of one task: its features, and `position`, (task, epoch, shard, row) or -1."""
        config = self.config
        lengths = self._lengths
        number = self.tasks.index(task)
        shard = seqio.ShardInfo(reader, num_readers)
        example_seed = _derive_seed(seed, reader, number)
        buffer_size = self.shuffle_buffer_size or task.shuffle_buffer_size
        buffer_size = buffer_size and -(-buffer_size // num_readers)
        if self.reads_chunks(task):
            dataset = task.source.get_dataset(config.split, config.shuffle, seed, shard, num_epochs=num_epochs)
            dataset = task.preprocess_precache(dataset, seed=example_seed)
            dataset = task.preprocess_postcache(dataset, sequence_length=lengths, seed=example_seed)
        else:
            dataset = task.get_dataset(
                lengths,
                config.split,
                config.use_cached,
                # The buffer is below, for all sources; SeqIO shuffles the files of this one.
                shuffle=config.shuffle,
                shuffle_buffer_size=1,
                # All readers need one order of files, since they may take every n-th example of it.
                seed=_derive_seed(seed, number),
                shard_info=shard if num_readers > 1 else None,
                num_epochs=num_epochs,
                trim_output_features=False,
                try_in_mem_cache=False,
            )

        names = [name for name in lengths if name in dataset.element_spec]
        if self._converts_in_numpy and not {"inputs", "targets"} <= set(names):
            raise ValueError(f"EncDecFeatureConverter needs inputs and targets; task {task.name!r} makes {names}.")

        def finish(example):
            result = {n: example[n][: lengths[n]] if config.trim_output_features else example[n] for n in names}
            document = example.get("document", tf.fill([3], tf.constant(-1, tf.int64)))
            return {**result, "position": tf.concat([tf.constant([number], tf.int64), document], axis=0)}

        dataset = dataset.map(finish)
        return dataset.shuffle(buffer_size, seed=example_seed) if config.shuffle and buffer_size else dataset

    def mixed_examples(
        self, seed: int, reader: int, num_readers: int, num_epochs: int | None = None
    ) -> tf.data.Dataset:
        """A reader's examples of all tasks at their rates, until a task ends; without a number of epochs none does."""
        datasets = [self.examples(task, seed, reader, num_readers, num_epochs) for task in self.tasks]
        if len(datasets) == 1:
            return datasets[0]
        assert isinstance(self.provider, seqio.Mixture)
        rates = [self.provider.get_rate(task) for task in self.tasks]
        weights = [rate / sum(rates) for rate in rates]
        choice_seed = _derive_seed(seed, reader, len(datasets))
        return tf.data.Dataset.sample_from_datasets(datasets, weights, choice_seed, stop_on_empty_dataset=True)

    def batch(self, examples: tf.data.Dataset, rows: int) -> tf.data.Dataset:
        lengths = self._lengths
        if self._converts_in_numpy:
            shapes = {**{name: [lengths[name]] for name in ("inputs", "targets")}, "position": [4]}
            batches = examples.padded_batch(rows, padded_shapes=shapes)
        else:
            batches = self.converter(pack=self.config.pack)(examples, lengths).batch(rows)
        options = tf.data.Options()
        options.deterministic = True
        # Random seeds and NumPy functions count as external state; ours are functions of their arguments.
        options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
        # Autotuning changes buffers, whose contents belong to the saved position.
        options.autotune.enabled = False
        return batches.with_options(options)

    def to_model_features(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._converts_in_numpy:
            return encoder_decoder_features(batch["inputs"], batch["targets"])
        return {k: v.astype(np.int32) if np.issubdtype(v.dtype, np.integer) else v for k, v in batch.items()}

    def fingerprint(self, seed: int, num_readers: int) -> dict[str, Any]:
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
        vocabulary = task.output_features["targets"].vocabulary
        pieces = vocabulary.sp_model if isinstance(vocabulary, seqio.SentencePieceVocabulary) else b""
        return {
            "rate": rate,
            "source": task.source.fingerprint(self.config.split)
            if self.reads_chunks(task)
            else type(task.source).__name__,
            "objectives": [repr(step) for step in task.preprocessors if isinstance(step, preprocessors.Denoise)],
            "vocabulary": [vocabulary.vocab_size, zlib.crc32(pieces)],
        }


def encoder_decoder_features(inputs: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    """What `seqio.EncDecFeatureConverter` makes of padded int32 `inputs` and `targets` `[batch, length]`."""
    shifted = np.zeros_like(targets)
    shifted[:, 1:] = targets[:, :-1]
    return {
        "encoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_input_tokens": shifted,
        "decoder_loss_weights": (targets != 0).astype(np.int32),
    }


def num_shards(task: seqio.Task, config: data.DatasetConfig) -> int | None:
    """Into how many parts readers can split a task's source; None if into any number."""
    if reads_cache(task, config) or task.source.supports_arbitrary_sharding:
        return None
    return len(task.source.list_shards(config.split))


def _check_lengths(task: seqio.Task, lengths: Mapping[str, int]) -> None:
    missing = [name for name in task.output_features if name not in lengths]
    if missing:
        raise ValueError(f"task_feature_lengths {dict(lengths)} has no length for {missing} of task {task.name!r}.")
    for step in task.preprocessors:
        if not isinstance(step, preprocessors.Denoise):
            continue
        step.check(task.output_features, lengths)
        needed = step.objective.lengths(lengths["inputs"])["targets"]
        given = lengths["targets"]
        where = f"task_feature_lengths of {task.name!r}: {lengths['inputs']} inputs are {needed} targets"
        if given < needed:
            raise ValueError(f"{where}, and {given} would cut them; set targets to {needed}.")
        if given > needed:
            waste = 100 * (given - needed) / given
            logger.warning(
                "%s, and %d wastes %.0f%% of the decoder on padding; set it to %d.", where, given, waste, needed
            )


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
