"""Opens SeqIO tasks and mixtures as the batches that the engine trains and evaluates on: the contract of `limba.data`.

A reader is one `tf.data` pipeline: the documents of its pieces of the source, the task's preprocessors, a shuffle
buffer, and its rows of the global batch. It is a function of configuration, seed and reader, and TensorFlow saves its
position to the last element.
"""

import dataclasses
import difflib
import functools
import importlib
import io
import json
import logging
import pathlib
import secrets
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from limba import data
from tasks import preprocessors, sources

logger = logging.getLogger(__name__)

FeatureConverter = str | type[seqio.FeatureConverter]

# The accelerators belong to JAX.
if tf.config.get_visible_devices("GPU"):
    tf.config.set_visible_devices([], "GPU")


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
    stream = _Stream.open(config, feature_converter, shuffle_buffer_size)
    num_readers = config.num_readers or stream.default_num_readers(process_count)
    layout = data.ReaderLayout(num_readers, config.batch_size, process_index, process_count)
    seed = config.seed
    if seed is None:
        seed = secrets.randbits(31)
        logger.warning("No seed is set for %s: this run draws %d.", config.name, seed)
    readers = [_Reader(stream, reader, layout, seed) for reader in layout.readers]
    foreign_tasks = [task for task in stream.tasks if not stream.reads_chunks(task)]
    if foreign_tasks:
        _say_what_cannot_be_done(foreign_tasks, config, layout)
        can_save = readers[0].probe()
        for reader in readers:
            reader.can_save = can_save
    return TrainBatches(readers)


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
    stream = _Stream.open(dataclasses.replace(config, shuffle=False, seed=config.seed or 0), feature_converter, None)
    sets = {task.name: EvalSet(stream, task, rows) for task in stream.tasks}
    if isinstance(stream.provider, seqio.Mixture):
        sets[stream.provider.name] = EvalSet(stream, None, rows)
    return sets


class TrainBatches:
    """This host's rows of the global batch, reader by reader. Implements `limba.data.BatchIterator`."""

    def __init__(self, readers: list["_Reader"]):
        self._readers = readers

    def __iter__(self) -> "TrainBatches":
        return self

    def __next__(self) -> data.Batch:
        parts = [next(reader) for reader in self._readers]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

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


class DatasetBatches:
    """A `tf.data.Dataset` of a user's own as the training stream. Implements `limba.data.BatchIterator`.

    Its position is saved by TensorFlow where it can save the pipeline; otherwise a resumed run reads all earlier
    batches again. A data set that ends is begun again.

    Args:
      dataset: batches of this host's rows under the model's feature names.
      config: what it was made from, for messages.
      process_index, process_count: this host, and how many there are.

    Raises:
      ValueError: if it is no `tf.data.Dataset`.
    """

    def __init__(self, dataset: tf.data.Dataset, config: data.DatasetConfig, process_index: int, process_count: int):
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(
                f"train.get_dataset_fn returned a {type(dataset).__name__} for {config.name!r}; it must return a "
                "tf.data.Dataset, or an iterator with save_state and restore_state (limba.data.BatchIterator)."
            )
        self._dataset = dataset.repeat()
        self._state_name = f"dataset-{process_index:03d}-of-{process_count:03d}.zip"
        self._name = config.name
        self._iterator = iter(self._dataset)
        self._batches = 0

    def __iter__(self) -> "DatasetBatches":
        return self

    def __next__(self) -> data.Batch:
        self._batches += 1
        return {name: value.numpy() for name, value in next(self._iterator).items()}

    def save_state(self) -> Mapping[str, bytes]:
        try:
            files = _save_iterator(self._iterator)
        except (tf.errors.UnimplementedError, tf.errors.FailedPreconditionError) as error:
            logger.warning("The data position of %s cannot be saved (%s).", self._name, error.message.split("\n")[0])
            files = {}
        return {self._state_name: _zip({"batches.json": json.dumps(self._batches).encode(), **files})}

    def restore_state(self, state: Mapping[str, bytes]) -> None:
        if self._state_name not in state:
            raise ValueError(
                f"The saved data position has no {self._state_name!r}, only {sorted(state)}; go on with the "
                "get_dataset_fn and the number of hosts that the run began with."
            )
        self._iterator = iter(self._dataset)
        with zipfile.ZipFile(io.BytesIO(state[self._state_name])) as archive:
            self._batches = json.loads(archive.read("batches.json"))
            if len(archive.namelist()) > 1:
                _restore_iterator(self._iterator, archive)
                return
        logger.warning("%s: %d batches are read again to find the place.", self._name, self._batches)
        for _ in range(self._batches):
            next(self._iterator)


def _save_iterator(iterator: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as directory:
        tf.train.Checkpoint(iterator=iterator).write(f"{directory}/iterator")
        return {path.name: path.read_bytes() for path in pathlib.Path(directory).iterdir()}


def _restore_iterator(iterator: Any, archive: zipfile.ZipFile) -> None:
    with tempfile.TemporaryDirectory() as directory:
        archive.extractall(directory)
        tf.train.Checkpoint(iterator=iterator).read(f"{directory}/iterator").assert_consumed()


def _zip(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class EvalSet:
    """The batches of one task, or of the whole mixture (`task` is None): they end, and can be iterated again."""

    def __init__(self, stream: "_Stream", task: seqio.Task | None, rows: slice):
        self._stream = stream
        self._task = task
        self._rows = rows
        self._use_cache = stream.config.use_memory_cache
        self._cache: list[data.Batch] = []
        self._remaining: Iterator[data.Batch] | None = None

    def __iter__(self) -> Iterator[data.Batch]:
        if not self._use_cache:
            yield from self._read()
            return
        if self._remaining is None:
            self._remaining = self._read()
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

    def _read(self) -> Iterator[data.Batch]:
        stream = self._stream
        seed = stream.config.seed
        assert seed is not None
        if self._task is None:
            examples = stream.mixed_examples(seed, reader=0, num_readers=1, num_epochs=1)
        else:
            examples = stream.examples(self._task, seed, reader=0, num_readers=1, num_epochs=1)
        batch_size = stream.config.batch_size
        for batch in stream.batch(examples, batch_size).prefetch(2).as_numpy_iterator():
            missing = batch_size - len(next(iter(batch.values())))
            full = {name: np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) for name, x in batch.items()}
            yield {name: value[self._rows] for name, value in stream.to_model_features(full).items()}


@dataclasses.dataclass(frozen=True)
class _Stream:
    """A checked configuration: which tasks are read, and how their examples become batches."""

    config: data.DatasetConfig
    provider: seqio.Task | seqio.Mixture
    tasks: list[seqio.Task]
    converter: type[seqio.FeatureConverter]
    shuffle_buffer_size: int | None

    @classmethod
    def open(
        cls, config: data.DatasetConfig, feature_converter: FeatureConverter, shuffle_buffer_size: int | None
    ) -> "_Stream":
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
                _check_cached(task)
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
        shards = [_num_shards(task, self.config) for task in self.tasks]
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


class _Reader:
    """One logical reader: endless batches of its rows, and where it is."""

    def __init__(self, stream: _Stream, reader: int, layout: data.ReaderLayout, seed: int):
        self._stream = stream
        self._reader = reader
        self._layout = layout
        self.state_name = f"reader-{reader:04d}-of-{layout.num_readers:04d}.zip"
        self.can_save = True
        self._open(seed)

    def _open(self, seed: int) -> None:
        self._seed = seed
        examples = self._stream.mixed_examples(seed, self._reader, self._layout.num_readers)
        self._dataset = self._stream.batch(examples, self._layout.rows_per_reader).prefetch(2)
        self._iterator = iter(self._dataset)
        self._batches = 0
        self._position: dict[int, tuple[int, ...]] = {}

    def probe(self) -> bool:
        """Whether TensorFlow can save this pipeline. A generator refuses only once it runs, so a batch is read."""
        try:
            next(self._iterator)
            _save_iterator(self._iterator)
        except (tf.errors.UnimplementedError, tf.errors.FailedPreconditionError) as error:
            logger.warning(
                "The data position of %s cannot be saved (%s). A restart will read all earlier batches again to find "
                "its place; a tasks.sources.HuggingFaceSource avoids that.",
                self._stream.config.name,
                error.message.partition("} ")[2].partition(" [")[0],
            )
            return False
        finally:
            self._open(self._seed)
        return True

    def __next__(self) -> dict[str, np.ndarray]:
        try:
            batch = {name: value.numpy() for name, value in next(self._iterator).items()}
        except tf.errors.OpError as error:
            # TensorFlow wraps the error of a reading function into its own, with a traceback as text.
            lines = [line for line in error.message.splitlines() if line.strip()]
            reason = next((line for line in lines if "Error" in line), lines[0])
            raise RuntimeError(
                f"Reading {self._stream.config.name!r} failed after {self._batches} batches: {reason}"
            ) from error
        self._batches += 1
        for number, *document in batch.pop("position", np.zeros((0, 4), np.int64)).tolist():
            self._position[number] = max(self._position.get(number, ()), tuple(document))
        return self._stream.to_model_features(batch)

    @functools.cached_property
    def _shard_names(self) -> list[list[str]]:
        split = self._stream.config.split
        return [
            [pathlib.PurePath(shard).name for shard in task.source.list_shards(split)]
            if self._stream.reads_chunks(task)
            else []
            for task in self._stream.tasks
        ]

    def save(self) -> bytes:
        """A zip archive: `position.json` for people, and TensorFlow's checkpoint of the iterator."""
        position = {
            self._stream.tasks[number].name: {"epoch": epoch, "shard": self._shard_names[number][shard], "row": row}
            for number, (epoch, shard, row) in sorted(self._position.items())
            if shard >= 0
        }
        header = {
            "batches": self._batches,
            "position": position,
            "fingerprint": self._stream.fingerprint(self._seed, self._layout.num_readers),
        }
        text = json.dumps(header, indent=1, ensure_ascii=False)
        return _zip({"position.json": text.encode(), **(_save_iterator(self._iterator) if self.can_save else {})})

    def check(self, state: bytes) -> None:
        """Raises ValueError if a state was saved with another configuration."""
        saved = self._header(state)["fingerprint"]
        seed = saved["seed"] if self._stream.config.seed is None else self._seed
        differences = list(_differences(saved, self._stream.fingerprint(seed, self._layout.num_readers)))
        if differences:
            raise ValueError(
                f"The saved data position ({self.state_name}) belongs to other data: {'; '.join(differences)}. Restore "
                "what it was, or start a new run in another directory."
            )

    def restore(self, state: bytes) -> None:
        header = self._header(state)
        # Opened anew: a run without a seed goes on with the seed that it drew first.
        self._open(header["fingerprint"]["seed"])
        if self.can_save:
            with zipfile.ZipFile(io.BytesIO(state)) as archive:
                _restore_iterator(self._iterator, archive)
        else:
            logger.warning("Reader %d reads %d batches again to find its place.", self._reader, header["batches"])
            for _ in range(header["batches"]):
                next(self._iterator)
        self._batches = header["batches"]
        numbers = {task.name: number for number, task in enumerate(self._stream.tasks)}
        for name, place in header["position"].items():
            number = numbers[name]
            shard = self._shard_names[number].index(place["shard"])
            self._position[number] = (place["epoch"], shard, place["row"])

    def _header(self, state: bytes) -> dict[str, Any]:
        try:
            with zipfile.ZipFile(io.BytesIO(state)) as archive:
                return json.loads(archive.read("position.json"))
        except (zipfile.BadZipFile, KeyError) as error:
            raise ValueError(f"The saved data position {self.state_name} is damaged ({error}).") from error


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


def find_provider(name: str | seqio.Task | seqio.Mixture, module: str | None = None) -> seqio.Task | seqio.Mixture:
    """The task or mixture of that name, after importing the module that registers it; a task or mixture is itself.

    Raises:
      ValueError: if the module or the name does not exist; says which names are near.
    """
    if not isinstance(name, str):
        return name
    if module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise
            raise ValueError(
                f"There is no module {module!r} (DatasetConfig.module, --module); check its name and PYTHONPATH."
            ) from error
    names = [*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()]
    if name not in names:
        nearest = difflib.get_close_matches(name, names, n=3, cutoff=0.3)
        known = f"The nearest are {', '.join(map(repr, nearest))}." if nearest else f"There are {len(names)} others."
        raise ValueError(
            f"There is no task or mixture {name!r}. {known} If a module of yours registers it, import that module: "
            "`import my_module` in the gin file, or DatasetConfig.module." + _of_t5()
        )
    return seqio.get_mixture_or_task(name)


def _of_t5() -> str:
    """What to say where a file has imported T5's own mixtures, and T5 is not installed."""
    if not type(sys.modules.get("t5.data.mixtures")).__module__.startswith("limba."):
        return ""
    return (
        " The mixtures of t5.data.mixtures come with T5 (pip install t5), not with Limba; a task of your own over the "
        "same data is registered as docs/data.md shows."
    )


def check_task_vocabularies(config: data.DatasetConfig, inputs: Any, targets: Any) -> None:
    """Checks that a task makes the ids that the model knows, whose vocabularies `inputs` and `targets` are.

    Raises:
      ValueError: if a vocabulary of the task is another.
    """
    for task in seqio.get_subtasks(find_provider(config.mixture_or_task_name, config.module)):
        for name, expected in (("inputs", inputs), ("targets", targets)):
            feature = task.output_features.get(name)
            if feature is not None and not same_vocabulary(feature.vocabulary, expected):
                raise ValueError(
                    f"Task {task.name!r} makes {name} with {_describe(feature.vocabulary)}, and the model has "
                    f"{_describe(expected)}: bind VOCABULARY_FILE, VOCAB_SIZE and extra_ids to the task's, or register "
                    "the task with the model's vocabulary."
                )


def task_vocabularies(config: data.DatasetConfig) -> tuple[seqio.Vocabulary, seqio.Vocabulary]:
    """The vocabularies of a task's inputs and targets.

    Without both features it is the one that the others have in common; features that pass ids through do not count.

    Raises:
      ValueError: if they have different ones.
    """
    features = find_provider(config.mixture_or_task_name, config.module).output_features
    if {"inputs", "targets"} <= set(features):
        return features["inputs"].vocabulary, features["targets"].vocabulary
    vocabularies = [feature.vocabulary for feature in features.values()]
    real = [v for v in vocabularies if not isinstance(v, seqio.PassThroughVocabulary)] or vocabularies
    if not all(same_vocabulary(vocabulary, real[0]) for vocabulary in real):
        raise ValueError(f"{config.name!r} has neither inputs and targets nor one vocabulary: {', '.join(features)}.")
    return real[0], real[0]


def same_vocabulary(a: Any, b: Any) -> bool:
    """Whether two vocabularies give the same ids. Those of SeqIO are equal only if their files have one path."""
    if a == b:
        return True
    if type(a) is not type(b) or not isinstance(a, seqio.SentencePieceVocabulary):
        return False
    settings = [{name: x for name, x in v.__getstate__().items() if "model_file" not in name} for v in (a, b)]
    return settings[0] == settings[1] and a.sp_model == b.sp_model


def _describe(vocabulary: seqio.Vocabulary) -> str:
    file = getattr(vocabulary, "sentencepiece_model_file", "")
    extra_ids = f", {vocabulary.extra_ids} of them extra_ids" if getattr(vocabulary, "extra_ids", 0) else ""
    return f"{type(vocabulary).__name__} {file} ({vocabulary.vocab_size} ids{extra_ids})".replace("  ", " ")


def converter_class(feature_converter: FeatureConverter) -> type[seqio.FeatureConverter]:
    if not isinstance(feature_converter, str):
        return feature_converter
    known = [name for name in dir(seqio) if name.endswith("FeatureConverter")]
    if feature_converter not in known:
        nearest = difflib.get_close_matches(feature_converter, known, n=1, cutoff=0.0)[0]
        raise ValueError(f"SeqIO has no feature converter {feature_converter!r}; did you mean {nearest!r}?")
    return getattr(seqio, feature_converter)


def _say_what_cannot_be_done(tasks: list[seqio.Task], config: data.DatasetConfig, layout: data.ReaderLayout) -> None:
    if layout.num_readers == 1:
        return
    for task in tasks:
        num_shards = _num_shards(task, config)
        if num_shards is not None and num_shards < layout.num_readers:
            logger.warning(
                "%s has too few shards (%d) for %d readers: each of them reads everything and keeps its share.",
                task.name,
                num_shards,
                layout.num_readers,
            )


def _num_shards(task: seqio.Task, config: data.DatasetConfig) -> int | None:
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


def _check_cached(task: seqio.Task) -> None:
    if task.cache_dir is None:
        places = ", ".join(seqio.get_global_cache_dirs()) or "no folder is named"
        raise ValueError(
            f"Task {task.name!r} has no offline cache ({places}), and DatasetConfig.use_cached asks for it. Make its "
            "examples while training with --gin.USE_CACHED_TASKS=False; or cache it with seqio_cache_tasks and name "
            "the folder, --seqio_additional_cache_dirs=FOLDER."
        )


def _derive_seed(*key: int) -> int:
    return int(np.random.default_rng(key).integers(2**30))


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted({*saved, *now}):
        before, after = saved.get(key), now.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from _differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key} was {before!r} and is {after!r}"
