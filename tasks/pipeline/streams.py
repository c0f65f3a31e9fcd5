"""A checked configuration of a task or mixture, and the pipelines of its readers and evaluations.

A reader's pipeline is the documents of its pieces of the source, the task's preprocessors, a shuffle buffer, and its
rows of the global batch. It is a function of configuration, seed and reader.

Examples are blocks of rows: whole arrays all the way from the documents to the batch. A block has int32
`[rows, length]` by feature, padded; `document`, int64 `[rows, 3]`, (epoch, shard, row) of the document that a row
begins in (-1: not known); and `position`, int64 `[rows, POSITION_SIZE]`: the task's number and the `TaskPosition` of
the next row. Until rows are shuffled, `position` lacks the rows taken.
"""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from limba.data import contract
from limba.tasks.pipeline import converters, deals, feature_lengths, mixing, positions
from limba.tasks.pipeline.positions import POSITION_SIZE, Position, ReadPlan
from limba.tasks.pretraining import denoising
from limba.tasks.registry import Task, philox, rows
from limba.tasks.registry.providers import with_split
from limba.tasks.registry.rows import Columns, Part, Rows, Tokens
from limba.tasks.registry.steps import Step, bind
from limba.tasks.registry.tasks import get_subtasks, is_mixture
from limba.tasks.sources.chunks import ReaderChunks
from limba.tasks.sources.sharded import NoDocumentError, ShardedSource
from limba.tasks.supervised import row_preprocessor

logger = logging.getLogger(__name__)

# What documents, preprocessors and vocabularies raise; anything else is a mistake of a programmer's.
UNREADABLE = (ValueError, TypeError, KeyError, IndexError, OSError, RuntimeError)
# Documents that are preprocessed together where no preprocessor has a number: as many as T5's own concatenate.
_DOCUMENTS_PER_GROUP = 128
# Documents of which an example is made as a rule, however many a group has.
_DOCUMENTS_TO_TRY = 8
# Epochs without an example after which there is none.
_EMPTY_EPOCHS = 2
# Examples that are converted, and so packed, together. A restart makes them again, and one row of each group is not
# full.
_EXAMPLES_PER_GROUP = 512
# The order of a block, from its first row's position and its size.
Order = Callable[[np.ndarray, int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Stream:
    """A checked configuration: which tasks are read, and how their examples become batches.

    Here all sources can begin anywhere, all preprocessors are steps and the feature converter is one of ours;
    The add-on `seqio` has the others.
    """

    # Whether a position is a few counters, since all sources can begin anywhere.
    is_counted: ClassVar[bool] = True

    config: contract.DatasetConfig
    provider: Any
    tasks: list[Any]
    feature_converter: Any
    shuffle_buffer_size: int | None

    @classmethod
    def open(
        cls, config: contract.DatasetConfig, provider: Any, feature_converter: Any, shuffle_buffer_size: int | None
    ) -> Self:
        """Checks the configuration of a task or mixture.

        Raises:
          ValueError, FileNotFoundError: for whatever is wrong with the task, the corpus, the vocabulary or the lengths.
        """
        if config.task_feature_lengths is None:
            raise ValueError(
                f"DatasetConfig.task_feature_lengths of {config.name!r} is None, which only inference evaluation "
                "accepts: bind TASK_FEATURE_LENGTHS, such as {'inputs': 512, 'targets': 114}."
            )
        found = with_split(provider, config.split)
        for task in get_subtasks(provider):
            if task not in found:
                logger.warning("Task %s has no split %r and is left out.", task.name, config.split)
        if is_mixture(provider) and not sum(map(provider.get_rate, found)):
            raise ValueError(f"All tasks of {provider.name!r} with a split {config.split!r} have the rate 0.")
        feature_lengths.check(found, config.task_feature_lengths)
        stream = cls(config, provider, found, feature_converter, shuffle_buffer_size)
        for task in found:
            stream._check_task(task)
        return stream

    def _check_task(self, task: Any) -> None:
        if self.config.use_cached:
            logger.info("Task %s cannot be cached: its examples are made while training.", task.name)
        if isinstance(task, Task):  # One of SeqIO's may make more than it declares.
            converters.check_features(self.feature_converter, task.name, list(task.output_features))
        task.source.check(self.config.split)
        row_preprocessor.check_task(task, self.config.split, self.config.task_feature_lengths)

    def reads_chunks(self, task: Any) -> bool:
        """Whether the documents of a task are read by their numbers."""
        return isinstance(task.source, ShardedSource)

    def may_be_endless(self, task: Any = None) -> bool:
        """Whether the split of a task (None: of any) is not known to end."""
        del task  # Sources of ours make one pass.
        return False

    def default_num_readers(self, process_count: int) -> int:
        """As many as read in parallel without reading anything twice; at least one per host.

        Fewer where there are fewer documents, since each reader needs one.
        """
        readers, split = contract.default_num_readers(self.config.batch_size), self.config.split
        while readers % (2 * process_count) == 0 and not all(
            task.source.has_documents(split, readers) for task in self.tasks
        ):
            readers //= 2
        return readers

    @property
    def _lengths(self) -> dict[str, int]:
        return dict(self.config.task_feature_lengths or {})

    @property
    def _converts_rows(self) -> bool:
        """Whether each example is a row of the batch: `inputs` and `targets`, which become the model's features."""
        return converters.name_of(self.feature_converter) == "EncDecFeatureConverter" and not self.config.pack

    # ---------------------------------------------------- batches -----------------------------------------------------

    def batches(self, num_rows: int, plan: ReadPlan, task: Any = None) -> Iterator[Columns]:
        """Batches of a reader's rows with their positions, of one task or of all of them at their rates.

        With a number of epochs they end when a task does, and the last batch may be shorter.
        """
        tasks = self.tasks if task is None else [task]
        if self._converts_rows:
            return self._mixed(tasks, plan, num_rows)
        groups = self._converted_groups(self._mixed(tasks, plan, _EXAMPLES_PER_GROUP), plan.position)
        return rebatch(skip(groups, plan.position.rows), num_rows)

    def num_batches_ahead(self, num_rows: int, num_readers: int) -> int:
        """How many batches a reader makes ahead: a shuffle buffer's, so that training never waits until one is full."""
        largest = max(self._buffer_size(task, num_readers) for task in self.tasks)
        return min(max(2, -(-largest // num_rows)), 64)

    def _mixed(self, tasks: Sequence[Any], plan: ReadPlan, size: int) -> Iterator[Columns]:
        """A reader's examples, `size` at a time; several tasks at their rates, until one of them ends."""
        parts = [self.examples(task, plan) for task in tasks]
        if len(parts) == 1:
            return rebatch(parts[0], size)
        rates = [self.provider.get_rate(task) for task in tasks]
        seed = derive_seed(plan.seed, plan.reader, len(parts))
        return mixing.mix(parts, rates, size, seed, plan.position.examples)

    def examples(self, task: Any, plan: ReadPlan) -> Iterator[Columns]:
        """A reader's examples of one task, in blocks, shuffled."""
        number = self.tasks.index(task)
        start = plan.position.of_task(number)
        buffer_size = self._buffer_size(task, plan.num_readers)
        seed = derive_seed(plan.seed, plan.reader, number)
        ordered = skip(self._examples_in_order(task, plan, seed), start.example)
        order = (order_of_windows if self._makes_windows(task) else order_of_examples)(seed)
        return skip(shuffle(ordered, buffer_size, order), start.taken)

    def _examples_in_order(self, task: Any, plan: ReadPlan, seed: int) -> Iterator[Columns]:
        number = self.tasks.index(task)
        if plan.deals.get(number) == deals.EXAMPLES:
            whole = dataclasses.replace(plan, reader=0, num_readers=1, deals={})
            made = self._examples_in_order(task, whole, derive_seed(plan.seed, 0, number))
            return deals.part_of(made, plan.reader, plan.num_readers)
        empty = _EmptyEpochs(_nothing_made(task, self.config.split, plan))
        groups = empty.groups(self._groups(task, plan))
        return empty.examples(self._made(task, groups, seed))

    def _made(self, task: Any, groups: Iterable[Rows], seed: int) -> Iterator[Columns]:
        """The blocks of a task of ours, each of a group of documents."""
        number = self.tasks.index(task)
        steps = [bind(step, task.output_features, self._lengths) for step in task.preprocessors]
        if self._makes_windows(task):
            return windows(groups, steps[0], self._lengths, number, seed)  # type: ignore[arg-type]
        lengths = feature_lengths.of_all(self._lengths)
        return examples(groups, steps, lengths, self.config.trim_output_features, number, seed)

    def _chunks(self, task: Any, plan: ReadPlan, chunk_documents: int | None = None) -> ReaderChunks:
        number = self.tasks.index(task)
        return task.source.chunks_of(
            self.config.split,
            self.config.shuffle,
            plan.seed,
            plan.reader,
            plan.num_readers,
            plan.position.of_task(number).document,
            plan.deals.get(number) == deals.ROTATED_ROWS,
            chunk_documents,
        )

    def find_deals(self, seed: int, num_readers: int) -> dict[int, str]:
        """How the documents of each task are dealt, by its number, where it is not by rows; see `ReadPlan`.

        Of a corpus that is far away only the first rows of a file are looked at, because each look is a connection; of
        one whose steps are SeqIO's nothing.
        """
        found = {}
        for number, task in enumerate(self.tasks):
            if num_readers == 1 or not isinstance(task, Task):
                continue
            if task.source.is_remote(self.config.split):
                is_blank = task.source.has_blank_part(self.config.split, num_readers)
                found[number] = deals.ROTATED_ROWS if is_blank else deals.ROWS
                continue
            ways: tuple[str, ...] = (deals.ROWS, deals.ROTATED_ROWS)
            if task.source.is_small(self.config.split):
                texts, documents = zip(*task.source.count_texts(self.config.split, num_readers), strict=True)
                ways = (deals.ROWS,) if texts == documents or max(texts) - min(texts) <= 1 else ()
            found[number] = deals.choose(
                ways, functools.partial(self._has_examples, task, seed, num_readers), num_readers
            )
        return {number: deal for number, deal in found.items() if deal != deals.ROWS}

    def _has_examples(self, task: Any, seed: int, num_readers: int, deal: str, reader: int) -> bool:
        """Whether an example is made of a reader's documents, in as many epochs as `_EmptyEpochs` waits for one."""
        number = self.tasks.index(task)
        plan = ReadPlan(seed, reader, num_readers, _EMPTY_EPOCHS, deals={number: deal})
        # The first documents alone, as a rule: a group of a task may have thousands.
        parts = (
            lambda: itertools.islice(self._chunks(task, plan, _DOCUMENTS_TO_TRY).documents(1), 1),
            lambda: self._groups(task, plan),
        )
        try:
            made = (self._made(task, groups(), derive_seed(seed, reader, number)) for groups in parts)
            return any(rows.num_rows(block) for blocks in made for block in blocks)
        except NoDocumentError:
            return False
        except UNREADABLE:  # Training says it, with the place.
            return True

    def _groups(self, task: Any, plan: ReadPlan) -> Iterator[Rows]:
        return rebatch(self._chunks(task, plan).documents(plan.num_epochs), group_size(task))

    def _makes_windows(self, task: Any) -> bool:
        """Whether a task's examples are windows of text, each a row of the batch."""
        return (
            self._converts_rows
            and len(task.preprocessors) == 1
            and isinstance(task.preprocessors[0], denoising.Denoise)
            and {"inputs", "targets"} <= set(task.output_features)
        )

    def _buffer_size(self, task: Any, num_readers: int) -> int:
        size = self.shuffle_buffer_size or task.shuffle_buffer_size
        return -(-size // num_readers) if size and self.config.shuffle else 1

    def _converted_groups(self, groups: Iterable[Columns], start: Position) -> Iterator[Columns]:
        """The model's rows of groups of examples, which begin at `start`.

        `positions` and `examples` of a row are where its group begins, `rows` is its number in the group, from 1.
        """
        position, count = positions.as_array(start, len(self.tasks)), start.examples
        for group in groups:
            features = {name: group[name] for name in feature_lengths.of_all(self._lengths) if name in group}
            made = self._convert(features)
            num_rows = rows.num_rows(made)
            yield {
                **made,
                "positions": np.tile(position, (num_rows, 1, 1)),
                "examples": np.full(num_rows, count, np.int64),
                "rows": np.arange(1, num_rows + 1),
            }
            position = position.copy()
            # Of several examples of a task the last counts.
            position[group["position"][:, 0]] = group["position"]
            count += rows.num_rows(group)

    def _convert(self, features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return converters.CONVERTERS[converters.name_of(self.feature_converter)](features, self.config.pack)

    def to_model_features(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The model's features of a batch without its positions."""
        if self._converts_rows:
            return converters.encoder_decoder(batch, False)
        return {k: v.astype(np.int32) if np.issubdtype(v.dtype, np.integer) else v for k, v in batch.items()}

    # ------------------------------------------------- facts about it -------------------------------------------------

    @functools.cached_property
    def task_groups(self) -> dict[str, list[int]]:
        """The groups that losses are reported by; see `mixing.task_groups`."""
        return mixing.task_groups(self.provider, self.tasks) if self._converts_rows else {}

    def tasks_of(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """`example_tasks` of a mixture's batch, from its feature `position`; packed rows have none."""
        if len(self.tasks) == 1 or "position" not in batch:
            return {}
        return {"example_tasks": np.eye(len(self.tasks), dtype=np.int32)[batch["position"][:, 0]]}


def derive_seed(*key: int) -> int:
    """A seed below 2^30 that follows from numbers."""
    return int(np.random.default_rng(key).integers(2**30))


# ----------------------------------------------------- examples ------------------------------------------------------


def group_size(task: Any) -> int:
    """How many documents of a task are preprocessed together."""
    sizes = [step.documents_per_batch for step in task.preprocessors if isinstance(step, denoising.Denoise)]
    return max(sizes, default=_DOCUMENTS_PER_GROUP)


class _EmptyEpochs:
    """Notices documents of which no example is made: an endless stream of them would wait for ever.

    Compares the documents with the examples that are made of them, group by group.

    Args:
      message: of the error.
    """

    def __init__(self, message: str):
        self._message = message
        # The epochs of the first and the last document since an example was made.
        self._since: tuple[int, int] | None = None

    def groups(self, groups: Iterable[Rows]) -> Iterator[Rows]:
        """The groups of documents, before they are preprocessed.

        Raises:
          ValueError: if no example was made of the documents of a whole epoch.
        """
        for group in groups:
            if self._since is not None and self._since[1] >= self._since[0] + _EMPTY_EPOCHS:
                raise ValueError(self._message)
            epochs = group.document[:, 0]
            self._since = int(epochs[0]) if self._since is None else self._since[0], int(epochs[-1])
            yield group

    def examples(self, blocks: Iterable[Columns]) -> Iterator[Columns]:
        """The examples, each block made of the last group that was taken."""
        for block in blocks:
            if rows.num_rows(block):
                self._since = None
                yield block


def _nothing_made(task: Any, split: str, plan: ReadPlan) -> str:
    part = f"the part of reader {plan.reader} of {plan.num_readers} of the documents" if plan.num_readers > 1 else ""
    fewer = "; fewer readers have larger parts: --gin.train/data.DatasetConfig.num_readers=1" if part else ""
    return (
        f"No example can be made of {part or 'the documents'} of task {task.name!r}, split {split!r}: they are blank, "
        f"or its preprocessors drop all of them. Look at the texts of {task.source!r}{fewer}."
    )


def windows(
    groups: Iterable[Rows], denoise: denoising.Denoise, lengths: Mapping[str, int], number: int, seed: int
) -> Iterator[Columns]:
    """The blocks of a pre-training task.

    Args:
      groups: documents that are concatenated.
      denoise, lengths: bound to the task's features and lengths.
      number: of the task.
      seed: of the corruption.
    """
    make_examples = denoise.function()
    for group in groups:
        first = group.document[0]
        group_seed = int(np.random.default_rng([seed, number, *first]).integers(2**63))
        features, begin_in = make_examples(rows.texts(group, denoise.text_column), group_seed)
        made = group.make({name: Tokens(*features[name]) for name in ("inputs", "targets")}, begin_in)
        yield block(made, lengths, _of_group(number, first))


def examples(
    groups: Iterable[Rows], steps: Sequence[Step], lengths: Mapping[str, int], trims: bool, number: int, seed: int
) -> Iterator[Columns]:
    """The blocks of any task, whose steps run on groups of documents so that a stream can begin with any group.

    Args:
      groups: documents.
      steps, lengths: bound to the task's features and lengths.
      trims: whether features are cut to their lengths; else a longer one is an error.
      number: of the task.
      seed: of the steps' random choices.

    Raises:
      ValueError: for a feature that is too long.
    """
    run = preprocessor(steps)
    for group in groups:
        first = _of_group(number, group.document[0])
        made = list(run([group], seed + philox.hash_numbers(first)))
        if made:
            yield block(rows.concatenate(made), lengths, first, trims)


def preprocessor(steps: Sequence[Step]) -> Callable[[Iterable[Rows], int], Iterator[Rows]]:
    """A function from documents and a seed to examples: all steps, each on as many rows at a time as it asks for.

    Random steps get the seeds that SeqIO gives them.
    """
    functions = [(step, step.rows_function()) for step in steps]

    def run(parts: Iterable[Rows], seed: int) -> Iterator[Rows]:
        for step, function in functions:
            seeds: Iterator[int] = itertools.repeat(0)
            if step.is_random:
                seeds, seed = philox.seed_pairs(seed), seed + 2
            parts = map(function, rebatch(parts, step.rows_per_group), seeds)
        return (part for part in parts if rows.num_rows(part))

    return run


def block(made: Rows, lengths: Mapping[str, int], first: list[int], trims: bool = True) -> Columns:
    """The block of the examples of a group; `first` is the task's number and the group's first document."""
    count = rows.num_rows(made)
    features: Columns = {}
    for name, length in lengths.items():
        if isinstance(column := made.columns.get(name), Tokens):
            if not trims and column.lengths.max(initial=0) > length:
                raise ValueError(
                    f"An example has {column.lengths.max()} tokens of {name}, and its length is {length}: raise "
                    "TASK_FEATURE_LENGTHS, or leave DatasetConfig.trim_output_features True."
                )
            features[name] = column.cut(length).pad(length)
    position = np.empty((count, POSITION_SIZE - 1), np.int64)
    position[:, :-1], position[:, -1] = first, np.arange(count)
    return {**features, "document": made.document, "position": position}


def _of_group(number: int, document: np.ndarray) -> list[int]:
    return [number, *document.tolist()]


# ------------------------------------------------------ shuffling -----------------------------------------------------


def shuffle(blocks: Iterable[Columns], size: int, order: Order) -> Iterator[Columns]:
    """Shuffles every `size` rows among themselves, which two numbers describe; a size of 1 leaves them in order."""
    if size == 1:  # Each row is a block of its own, of which one is taken.
        yield from (_with_taken(block, block["position"], 1) for block in blocks)
        return
    for whole in rebatch(blocks, size):
        first, count = whole["position"][0], len(whole["position"])
        shuffled = rows.take(whole, order(first, count))
        yield _with_taken(shuffled, np.tile(first, (count, 1)), np.arange(1, count + 1))


def _with_taken(block: Columns, position: np.ndarray, taken: np.ndarray | int) -> Columns:
    numbered = np.empty((len(position), POSITION_SIZE), np.int64)
    numbered[:, :-1], numbered[:, -1] = position, taken
    return {**block, "position": numbered}


def order_of_windows(seed: int) -> Order:
    """The order of a pre-training task's rows."""
    return lambda first, count: np.random.default_rng([seed, *first]).permutation(count)


def order_of_examples(seed: int) -> Order:
    """The order of any other task's rows: that of `tf.data`'s shuffle buffer."""
    return lambda first, count: philox.permutation(count, philox.hash_numbers(first.tolist()) + seed)


# -------------------------------------------------- rows of any parts ------------------------------------------------


def rebatch(parts: Iterable[Part], size: int) -> Iterator[Part]:
    """The same rows, `size` at a time; the last part may be shorter, none is empty."""
    kept: list[Part] = []
    count = 0
    for part in parts:
        if not rows.num_rows(part):
            continue
        kept.append(part)
        count += rows.num_rows(part)
        if count < size:
            continue
        whole = rows.concatenate(kept)
        full = count - count % size
        for start in range(0, full, size):
            yield rows.take(whole, slice(start, start + size))
        kept, count = ([rows.take(whole, slice(full, None))] if count > full else []), count - full
    if count:
        yield rows.concatenate(kept)


def skip(parts: Iterable[Part], count: int) -> Iterator[Part]:
    """Without the first `count` rows."""
    for part in parts:
        if count >= (size := rows.num_rows(part)):
            count -= size
            continue
        yield rows.take(part, slice(count, None)) if count else part
        count = 0
