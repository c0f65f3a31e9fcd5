"""Examples as blocks of rows: whole arrays all the way from the documents to the batch.

A block has int32 `[rows, length]` by feature, padded; `document`, int64 `[rows, 3]`, (epoch, shard, row) of the
document that a row begins in (-1: not known); and `position`, int64 `[rows, POSITION_SIZE]`: the task's number and the
`TaskPosition` of the next row. Until rows are shuffled, `position` lacks the rows taken.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from tasks.pipeline.positions import POSITION_SIZE
from tasks.pretraining import denoising
from tasks.registry import philox, rows
from tasks.registry.rows import Columns, Rows, Tokens
from tasks.registry.steps import Step

# The order of a block, from its first row's position and its size.
Order = Callable[[np.ndarray, int], np.ndarray]
_FEATURES = ("inputs", "targets")


# ----------------------------------------------------- examples ------------------------------------------------------


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
        made = group.make({name: Tokens(*features[name]) for name in _FEATURES}, begin_in)
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
            parts = map(function, rows.rebatch(parts, step.rows_per_group), seeds)
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
    for whole in rows.rebatch(blocks, size):
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


# ------------------------------------------------------- mixing -------------------------------------------------------

_CHOICES_PER_BLOCK = 1024


def mix(
    parts: Sequence[Iterable[Columns]], rates: Sequence[float], size: int, seed: int, drawn: int
) -> Iterator[Columns]:
    """Rows of several streams at their rates, `size` at a time, until one of them ends; the last may be fewer.

    Args:
      seed: of the choices.
      drawn: rows that were drawn before.
    """
    streams = [_RowStream(part) for part in parts]
    chosen = _choices(rates, seed, drawn)
    while True:
        task = np.fromiter(itertools.islice(chosen, size), np.int64, size)
        places = [np.flatnonzero(task == number) for number in range(len(streams))]
        taken = [stream.take(len(place)) for stream, place in zip(streams, places, strict=True)]
        # A stream with too few rows ends the mixture at the first row that it lacks.
        missing = [
            place[rows.num_rows(got) if got else 0]
            for place, got in zip(places, taken, strict=True)
            if len(place) > (rows.num_rows(got) if got else 0)
        ]
        count = min(missing, default=size)
        found = [(place[place < count], got) for place, got in zip(places, taken, strict=True) if got]
        if count:
            yield _place(found, int(count))
        if missing:
            return


def _place(parts: Sequence[tuple[np.ndarray, Columns]], count: int) -> Columns:
    """Rows of several parts, each part's in its places."""
    placed: Columns = {}
    for name, column in parts[0][1].items():
        placed[name] = np.empty((count, *column.shape[1:]), column.dtype)  # type: ignore[union-attr]
        for place, part in parts:
            placed[name][place] = part[name][: len(place)]
    return placed


def _choices(rates: Sequence[float], seed: int, drawn: int) -> Iterator[int]:
    """The number of the stream that each row comes from."""
    bounds = (np.cumsum(rates) / sum(rates))[:-1]
    first, skipped = divmod(drawn, _CHOICES_PER_BLOCK)
    for number in itertools.count(first):
        values = philox.stateless_uniform((seed, number), _CHOICES_PER_BLOCK)
        yield from np.searchsorted(bounds, values, side="right")[skipped if number == first else 0 :].tolist()


class _RowStream:
    """A stream of blocks, of which any number of rows can be taken."""

    def __init__(self, blocks: Iterable[Columns]):
        self._blocks = iter(blocks)
        self._kept: Columns | None = None

    def take(self, count: int) -> Columns | None:
        """The next rows; fewer where the stream ends, None where there are none."""
        parts: list[Columns] = []
        while count:
            if self._kept is None:
                self._kept = next(self._blocks, None)
                if self._kept is None:
                    break
            parts.append(rows.take(self._kept, slice(0, count)))
            taken = rows.num_rows(parts[-1])
            rest = rows.take(self._kept, slice(taken, None))
            self._kept = rest if rows.num_rows(rest) else None
            count -= taken
        return rows.concatenate(parts) if parts else None
