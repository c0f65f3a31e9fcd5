"""The contract between the engine and the data.

The engine asks for batches by a `DatasetConfig` and receives NumPy arrays under SeqIO's feature names. Whoever produces
them (the `tasks` package, a benchmark, a test) needs nothing from the engine but this module. The functions that open
SeqIO tasks are in `limba.inference.tasks_door`.

Feature names of an encoder-decoder batch, all int32 `[batch, length]`:

- `encoder_input_tokens`, `decoder_target_tokens`
- `decoder_input_tokens`: the targets shifted right by one, each sequence begins with 0
- `decoder_loss_weights`: 1 on a target token, 0 on padding
- packed batches add `encoder_segment_ids`, `decoder_segment_ids`, `encoder_positions`, `decoder_positions`
- batches of a masked language model have `masked_lm_positions`, where in the row the `decoder_target_tokens` stand, and
  no `decoder_input_tokens`
- batches of an encoder's texts with labels may have `encoder_token_types`, those of the tokenizer
- with sentence pairs also `encoder_token_types`, and `pair_positions` and `pair_labels` `[batch, pairs]`: where the
  [CLS] of each pair stands, and 1 where its second segment follows the first, 2 where it does not, 0 for no pair
- batches of pairs of texts have the second texts as `decoder_target_tokens`, and no `decoder_input_tokens`
- batches of a mixture, unless they are packed, add `example_tasks` `[batch, tasks]`: 1 at the task of the example
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_0, AT_LEAST_1

# XLA ends the process at rows that it cannot count.
_SIZE = AT_LEAST_1._replace(below=2**31)
# Of a task's feature of token types: "inputs_token_types". It has the length of "inputs".
TOKEN_TYPES = "_token_types"
# NumPy arrays where data come in; inside a jitted step the same names hold JAX arrays.
Batch = Mapping[str, Any]


def vocabulary_file(vocabulary: Any) -> str | None:
    """The file that a vocabulary is read from, in SeqIO's words or in ours; None if it has none."""
    for name in ("sentencepiece_model_file", "tokenizer_file"):
        if file := getattr(vocabulary, name, None):
            return str(file)
    return None


def is_far(vocabulary: Any) -> bool:
    """Whether the file of a vocabulary is in a bucket or behind a URL, so that it takes the network to read it."""
    return "://" in (vocabulary_file(vocabulary) or "")


def check_seed(name: str, seed: Any) -> None:
    """Raises ValueError for a seed that no generator takes."""
    if seed is not None:
        number_ranges.check(name, seed, AT_LEAST_0, ", or None to draw one")


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of a training from which on it reads other batches; None keeps what the stage before it has.

    Attributes:
      begins: the batches of the run before the first one of this stage. Those of its initial checkpoint do not count.
      mixture_or_task_name: another task or mixture: other blanks, or the same tasks at other rates.
      task_feature_lengths: other lengths.
      batch_size: another number of rows.
    """

    begins: int
    mixture_or_task_name: Any = None
    task_feature_lengths: Mapping[str, int] | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        number_ranges.check("Stage.begins", self.begins, AT_LEAST_1, ", in batches")
        if not self.changes:
            raise ValueError(
                f"The Stage that begins after {self.begins} batches changes nothing: give it a mixture_or_task_name, "
                "task_feature_lengths or a batch_size."
            )

    @property
    def changes(self) -> dict[str, Any]:
        """The fields of the configuration that it changes."""
        return {name: value for name, value in vars(self).items() if name != "begins" and value is not None}


@dataclasses.dataclass(frozen=True)
class DatasetConfig:
    """What to read: T5X's `utils.DatasetConfig`, field by field, plus the number of readers and the stages.

    Attributes:
      mixture_or_task_name: a name in the SeqIO registry, or a SeqIO task or mixture itself.
      task_feature_lengths: tokens per feature, such as `{"inputs": 512, "targets": 114}`. None, for inference
        evaluation only, takes the longest of the examples.
      batch_size: examples in the global batch, over all hosts.
      shuffle: whether examples are shuffled, each epoch differently.
      seed: makes order and corruption reproducible. None draws one, and the log says which.
      use_cached: read SeqIO's offline cache instead of the source.
      pack: put several short examples into one row.
      use_custom_packing_ops: accepted for T5X's files; must be False.
      module: a Python module to import first, the one that registers the task.
      use_memory_cache: keep evaluation batches after the first pass, in host memory and up to 32 MB a device there.
      trim_output_features: cut features to their length instead of failing.
      num_workers: processes of this host that make training batches, for tasks that need no SeqIO; 0 makes them in
        threads. The batches are the same.
      runtime_preprocessors, num_prefetch_threads: of AirIO, which T5X also reads and Limba does not; accepted as T5X's
        files leave them.
      num_readers: logical readers that split the source. Part of the data order: the global batch at step n depends
        on it and on nothing else about the hosts. None means `default_num_readers(batch_size)`; half of it, and so
        on, for a source that has fewer documents; or one per host for a source that has fewer parts.
      stages: of training, after the first, which is the configuration itself; in the order in which they begin.
    """

    mixture_or_task_name: Any
    task_feature_lengths: Mapping[str, int] | None
    split: str
    batch_size: int
    shuffle: bool = True
    seed: int | None = None
    use_cached: bool = False
    pack: bool = False
    use_custom_packing_ops: bool = False
    module: str | None = None
    use_memory_cache: bool = True
    trim_output_features: bool = True
    runtime_preprocessors: Sequence[Any] | None = None
    num_prefetch_threads: int | None = None
    num_workers: int | None = 0
    num_readers: int | None = None
    stages: Sequence[Stage] = ()

    def __post_init__(self) -> None:
        if self.runtime_preprocessors:
            raise ValueError(
                "DatasetConfig.runtime_preprocessors belong to AirIO tasks, which Limba does not read; register the "
                "task with tasks.registry, or with SeqIO."
            )
        number_ranges.check("DatasetConfig.num_workers", self.num_workers, AT_LEAST_0._replace(or_none=True))
        number_ranges.check("DatasetConfig.batch_size (BATCH_SIZE)", self.batch_size, _SIZE)
        check_seed("DatasetConfig.seed (DATASET_SEED)", self.seed)
        lengths = self.task_feature_lengths or {}
        if not isinstance(lengths, Mapping):
            raise ValueError(
                f"DatasetConfig.task_feature_lengths (TASK_FEATURE_LENGTHS) is {lengths!r}; give a length for each "
                "feature, such as {'inputs': 512, 'targets': 114}."
            )
        for feature, length in lengths.items():
            if length is not None:
                name = f"DatasetConfig.task_feature_lengths[{feature!r}] (TASK_FEATURE_LENGTHS)"
                number_ranges.check(name, length, _SIZE)
        if self.use_custom_packing_ops:
            raise ValueError("DatasetConfig.use_custom_packing_ops needs tensor2tensor's ops; set it to False.")
        readers = self.num_readers
        if readers is not None and (not isinstance(readers, int) or readers < 1 or self.batch_size % readers):
            raise ValueError(
                f"DatasetConfig.num_readers is {readers!r}, which does not divide batch_size "
                f"{self.batch_size}; choose a divisor."
            )

        begins = [stage.begins for stage in self.stages]
        if begins != sorted(set(begins)):
            raise ValueError(f"DatasetConfig.stages begin after {begins} batches; each begins later than the last.")
        if self.stages:
            self.by_stage()

    def by_stage(self) -> list["DatasetConfig"]:
        """The configuration of each stage, one for a training without; its own `stages` are empty.

        Raises:
          ValueError: if one of them cannot be.
        """
        found = [dataclasses.replace(self, stages=()) if self.stages else self]
        for stage in self.stages:
            found.append(dataclasses.replace(found[-1], **stage.changes))
        return found

    @property
    def name(self) -> str:
        """Of the task or mixture."""
        provider = self.mixture_or_task_name
        return provider if isinstance(provider, str) else provider.name


def default_num_readers(batch_size: int) -> int:
    """The default number of readers: 8, or the largest power of two below it that divides the batch."""
    return math.gcd(batch_size, 8)


@dataclasses.dataclass(frozen=True)
class ReaderRows:
    """Which rows of the global batch each reader makes, and which readers each host owns.

    Reader `r` yields rows `[r * rows_per_reader, (r + 1) * rows_per_reader)` of every global batch; host `h` owns a
    contiguous run of readers, so its rows are contiguous too.

    Raises:
      ValueError: if readers cannot be shared equally between the hosts.
    """

    num_readers: int
    batch_size: int
    process_index: int = 0
    process_count: int = 1

    def __post_init__(self) -> None:
        if self.num_readers % self.process_count:
            raise ValueError(
                f"{self.num_readers} readers cannot be shared equally by {self.process_count} hosts; set "
                f"DatasetConfig.num_readers to a multiple of {self.process_count} that divides the batch "
                f"of {self.batch_size}."
            )
        if self.batch_size % self.num_readers:
            raise ValueError(f"A batch of {self.batch_size} does not divide by {self.num_readers} readers.")

    @property
    def rows_per_reader(self) -> int:
        return self.batch_size // self.num_readers

    @property
    def readers(self) -> range:
        """The readers that this host owns."""
        per_host = self.num_readers // self.process_count
        return range(self.process_index * per_host, (self.process_index + 1) * per_host)


# The remedy where a MODEL_DIR has a run on other data.
NEW_RUN = "start a new run in another MODEL_DIR, with INITIAL_CHECKPOINT_PATH to begin with the weights of this one"


class ChangedVocabularyError(ValueError):
    """A saved position belongs to another vocabulary than the one in `file`, which the task reads now."""

    def __init__(self, message: str, file: str):
        super().__init__(message)
        self.file = file


class Document(NamedTuple):
    """A document: the `row`-th (from 0) of a file that a task reads."""

    task: str
    file: str
    row: int


class ReadingStoppedError(Exception):
    """`stop_waiting` was called while a batch was awaited."""


class BatchIterator(Protocol):
    """An endless, resumable stream of this host's rows of the global batch.

    It may also have a method `stop_waiting()`, which any thread may call: a `__next__` that waits then raises
    `ReadingStoppedError`, and the position stays where it was. A batch that is there already is still returned.
    A method `check_state(state)` may raise what `restore_state` would, without reading; a run calls it at its start.
    A method `documents()` may say in which documents the rows of the last batch begin, and an attribute `config` which
    stage's configuration the last batch has; before the first one is read, the next batch.
    """

    def __iter__(self) -> "BatchIterator": ...

    def __next__(self) -> Batch:
        """The next batch: `[rows of this host, length]` per feature."""
        ...

    def save_state(self) -> Mapping[str, bytes]:
        """The position after the last batch returned: one file name and content per reader that this host owns.

        Names are the same whichever host owns the reader, so that a run can go on with another number of hosts.
        """
        ...

    def restore_state(self, state: Mapping[str, bytes]) -> None:
        """Goes to a saved position. Files of readers that this host does not own are ignored.

        Raises:
          ChangedVocabularyError: if the task's vocabulary file is another now.
          ValueError: if a reader's file is missing, or was saved by another task, seed or number of readers.
        """
        ...


@runtime_checkable
class TaskBatches(BatchIterator, Protocol):
    """A stream that knows the tasks of its examples: losses are then reported by task.

    Attributes:
      task_groups: the columns of `example_tasks` by what is reported together: each task by its name, and what several
        tasks have in common. Empty where batches have no `example_tasks`.
    """

    task_groups: Mapping[str, Sequence[int]]

    def epochs(self) -> Mapping[str, float]:
        """How often each task has gone through its documents, on this host."""
        ...


# An evaluation set: per task, batches that end and can be iterated again. The last batch is filled up with rows whose
# `decoder_loss_weights` are 0, so that every example counts exactly once.
EvalBatches = Mapping[str, Iterable[Batch]]


class GetDatasetFn(Protocol):
    """Opens the training stream, positioned at its beginning: T5X's `GetDatasetCallable`.

    The result is a `BatchIterator`, or, as T5X's functions return, a `tf.data.Dataset` of this host's rows.
    """

    def __call__(self, cfg: DatasetConfig, shard_id: int, num_shards: int, feature_converter_cls: Any) -> Any: ...


class GetEvalDatasetFn(Protocol):
    """Opens the evaluation sets: T5X's `GetEvalDatasetCallable`. The values may be `tf.data.Dataset`s."""

    def __call__(
        self, cfg: DatasetConfig, shard_id: int, num_shards: int, eval_steps: int | None, feature_converter_cls: Any
    ) -> Mapping[str, Any]: ...


def round_vocab_size_to_multiple(vocabulary: Any, divisor: int = 128) -> int:
    """Rows of an embedding for a vocabulary: its size, rounded up. T5X's, for `T5Config.vocab_size` in gin files."""
    return -(-vocabulary.vocab_size // divisor) * divisor


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


class NumpyBatches:
    """A finite `tf.data.Dataset` as batches that can be iterated again."""

    def __init__(self, dataset: Any):
        self._dataset = dataset

    def __iter__(self) -> Iterator[Batch]:
        return self._dataset.as_numpy_iterator()
