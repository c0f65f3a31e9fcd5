"""A checked configuration of a task or mixture, and the pipelines of its readers and evaluations.

A reader's pipeline is the documents of its pieces of the source, the task's preprocessors, a shuffle buffer, and its
rows of the global batch. It is a function of configuration, seed and reader.
"""

import dataclasses
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from limba.data import contract
from tasks.pipeline import blocks, converters, fingerprints, positions
from tasks.pipeline.positions import Position
from tasks.pretraining import denoising
from tasks.registry import Task, rows
from tasks.registry.providers import tasks_with_split
from tasks.registry.rows import Columns, Rows
from tasks.registry.steps import bind
from tasks.registry.tasks import get_subtasks, is_mixture, registries
from tasks.sources.chunks import ReaderChunks
from tasks.sources.sharded import ShardedSource
from tasks.supervised import row_preprocessor

logger = logging.getLogger(__name__)

# Documents that are preprocessed together where no preprocessor has a number: as many as T5's own concatenate.
_DOCUMENTS_PER_GROUP = 128
# Examples that are converted, and so packed, together. A restart makes them again, and one row of each group is not
# full.
_EXAMPLES_PER_GROUP = 512


@dataclasses.dataclass(frozen=True)
class ReadPlan:
    """What a logical reader reads: its part of the documents, from a position on. `num_epochs` of None is for ever."""

    seed: int
    reader: int = 0
    num_readers: int = 1
    num_epochs: int | None = None
    position: Position = dataclasses.field(default_factory=Position)


@dataclasses.dataclass(frozen=True)
class Stream:
    """A checked configuration: which tasks are read, and how their examples become batches.

    Here all sources can begin anywhere, all preprocessors are steps and the feature converter is one of ours;
    `tasks.pipeline.seqio.seqio_streams` has the others.
    """

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
        found = with_split(config, provider)
        for task in get_subtasks(provider):
            if task not in found:
                logger.warning("Task %s has no split %r and is left out.", task.name, config.split)
        _check_lengths(found, config.task_feature_lengths)
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

    @property
    def is_counted(self) -> bool:
        """Whether a position is a few counters: all sources can begin anywhere."""
        return True

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
        return rows.rebatch(rows.skip(groups, plan.position.rows), num_rows)

    def num_batches_ahead(self, num_rows: int, num_readers: int) -> int:
        """How many batches a reader makes ahead: a shuffle buffer's, so that training never waits until one is full."""
        largest = max(self._buffer_size(task, num_readers) for task in self.tasks)
        return min(max(2, -(-largest // num_rows)), 64)

    def _mixed(self, tasks: Sequence[Any], plan: ReadPlan, size: int) -> Iterator[Columns]:
        """A reader's examples, `size` at a time; several tasks at their rates, until one of them ends."""
        parts = [self.examples(task, plan) for task in tasks]
        if len(parts) == 1:
            return rows.rebatch(parts[0], size)
        rates = [self.provider.get_rate(task) for task in tasks]
        seed = derive_seed(plan.seed, plan.reader, len(parts))
        return blocks.mix(parts, rates, size, seed, plan.position.examples)

    def examples(self, task: Any, plan: ReadPlan) -> Iterator[Columns]:
        """A reader's examples of one task, in blocks, shuffled."""
        number = self.tasks.index(task)
        start = plan.position.of_task(number)
        buffer_size = self._buffer_size(task, plan.num_readers)
        seed = derive_seed(plan.seed, plan.reader, number)
        ordered = rows.skip(self._examples_in_order(task, plan, seed), start.example)
        order = (blocks.order_of_windows if self._makes_windows(task) else blocks.order_of_examples)(seed)
        return rows.skip(blocks.shuffle(ordered, buffer_size, order), start.taken)

    def _examples_in_order(self, task: Any, plan: ReadPlan, seed: int) -> Iterator[Columns]:
        number = self.tasks.index(task)
        steps = [bind(step, task.output_features, self._lengths) for step in task.preprocessors]
        empty = _EmptyEpochs(_nothing_made(task, self.config.split, plan))
        groups = empty.groups(rows.rebatch(self._chunks(task, plan).documents(plan.num_epochs), group_size(task)))
        if self._makes_windows(task):
            made = blocks.windows(groups, steps[0], self._lengths, number, seed)  # type: ignore[arg-type]
        else:
            made = blocks.examples(groups, steps, self._lengths, self.config.trim_output_features, number, seed)
        return empty.examples(made)

    def _chunks(self, task: Any, plan: ReadPlan) -> ReaderChunks:
        start = plan.position.of_task(self.tasks.index(task)).document
        return task.source.chunks_of(
            self.config.split, self.config.shuffle, plan.seed, plan.reader, plan.num_readers, start
        )

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
            features = {name: group[name] for name in self._lengths if name in group}
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

    def tasks_of(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """`example_tasks` of a mixture's batch, from its feature `position`; packed rows have none."""
        if len(self.tasks) == 1 or "position" not in batch:
            return {}
        return {"example_tasks": np.eye(len(self.tasks), dtype=np.int32)[batch["position"][:, 0]]}

    @functools.cached_property
    def task_groups(self) -> dict[str, list[int]]:
        """The groups that losses are reported by: tasks, and the mixtures and objectives that several tasks share."""
        if len(self.tasks) == 1 or not self._converts_rows:
            return {}
        groups: dict[str, list[int]] = {}
        for number, task in enumerate(self.tasks):
            for step in task.preprocessors:
                if isinstance(step, denoising.Denoise):
                    groups.setdefault(f"objective_{step.objective.name}", []).append(number)
        for name in self.provider.rate_per_task_name:
            if (mixture := _find_mixture(name)) is not None:
                inner = {task.name for task in mixture.tasks}
                groups[name] = [number for number, task in enumerate(self.tasks) if task.name in inner]
        # A group of all tasks, or of one, adds nothing.
        groups = {name: numbers for name, numbers in groups.items() if 1 < len(numbers) < len(self.tasks)}
        return {task.name: [number] for number, task in enumerate(self.tasks)} | groups

    def keep_revisions(self, saved: Mapping[str, Any]) -> None:
        """Returns to the revisions of data sets in a saved fingerprint, where branches have moved."""
        for task in self.tasks:
            source = saved["tasks"].get(task.name, {}).get("source")
            if self.reads_chunks(task) and isinstance(source, Mapping):
                task.source.keep_revision(source)

    def fingerprint(self, seed: int | None, num_readers: int | None) -> dict[str, Any]:
        """The settings that a saved position depends on: if any of them changes, it means other batches."""
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
            "feature_converter": converters.name_of(self.feature_converter),
            "tasks": {task.name: self._fingerprint_of_task(task) for task in self.tasks},
        }

    def _fingerprint_of_task(self, task: Any) -> dict[str, Any]:
        source = task.source.fingerprint(self.config.split) if self.reads_chunks(task) else type(task.source).__name__
        return {
            "rate": self.provider.get_rate(task) if is_mixture(self.provider) else 1.0,
            "source": source,
            "preprocessors": [fingerprints.describe(step) for step in task.preprocessors],
            "vocabulary": fingerprints.of_vocabulary(task.output_features["targets"].vocabulary),
        }


def with_split(config: contract.DatasetConfig, provider: Any) -> list[Any]:
    """The tasks that have the split of a configuration; raises ValueError if there is none."""
    found = tasks_with_split(provider, config.split)
    if not found:
        has = ", ".join(map(repr, sorted(provider.splits)))
        raise ValueError(f"{config.name!r} has no split {config.split!r}; it has {has}.")
    return found


def _find_mixture(name: str) -> Any:
    """The mixture of that name, ours or SeqIO's; None if it is a task's."""
    return next((x.get(name) for x in registries() if name in x.names() and is_mixture(x.get(name))), None)


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
            if self._since is not None and self._since[1] >= self._since[0] + 2:
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


def _check_lengths(tasks: list[Any], lengths: Mapping[str, int]) -> None:
    longest = 0
    for task in tasks:
        missing = [name for name in task.output_features if name not in lengths]
        if missing:
            raise ValueError(f"task_feature_lengths {dict(lengths)} has no length for {missing} of task {task.name!r}.")
        for step in task.preprocessors:
            if not isinstance(step, denoising.Denoise):
                continue
            step.check(task.output_features, lengths)
            needed = step.lengths(task.output_features, lengths)["targets"]
            if lengths["targets"] < needed:
                where = _describe_lengths(task, lengths, needed)
                raise ValueError(f"{where}, and {lengths['targets']} would cut them; set targets to {needed}.")
            if needed > longest:
                longest, where = needed, _describe_lengths(task, lengths, needed)
    waste = 100 * (lengths["targets"] - longest) / lengths["targets"] if longest else 0
    # The tokens of a mode make windows a little shorter; of a mixture, the longest targets count.
    if waste >= 1:
        logger.warning(
            "%s, and %d wastes %.0f%% of the decoder on padding; set it to %d.",
            *(where, lengths["targets"], waste, longest),
        )


def _describe_lengths(task: Any, lengths: Mapping[str, int], needed: int) -> str:
    return f"task_feature_lengths of {task.name!r}: {lengths.get('inputs', 0)} inputs are {needed} targets"


def derive_seed(*key: int) -> int:
    """A seed below 2^30 that follows from numbers."""
    return int(np.random.default_rng(key).integers(2**30))
