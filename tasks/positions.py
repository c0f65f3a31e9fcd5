"""Where a reader is in the data, as a few numbers, and steps of `tf.data` pipelines that can begin at such a place.

TensorFlow could save its iterators, buffers and all: 2 MB per reader for 512-token examples. Here a shuffle buffer, a
group of documents or of packed rows is made again from where it begins, which a few counters say.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import seqio
import tensorflow as tf

# Examples that are converted, and so packed, together: what a restart makes again, and one row in so many is not full.
_EXAMPLES_PER_GROUP = 512


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a reader goes on in a task: what the shuffle buffer was filled with, and how much of that was taken.

    Attributes:
      epoch, shard, row: the document with which a group begins; documents are preprocessed in groups. An epoch of -1 is
        the beginning.
      example: the example of the group with which the shuffle buffer begins.
      taken: examples that were taken from the buffer.
    """

    epoch: int = -1
    shard: int = -1
    row: int = -1
    example: int = 0
    taken: int = 0

    @property
    def document(self) -> tuple[int, int, int] | None:
        return (self.epoch, self.shard, self.row) if self.epoch >= 0 else None


# The task's number comes first.
POSITION_SIZE = 1 + len(dataclasses.fields(Position))


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a reader goes on.

    Attributes:
      positions: by the number of the task; those that were never read from are missing.
      examples: how many were drawn from the tasks at these positions.
      rows: rows that were taken since then; not 0 only where examples are converted, and packed, in groups.
    """

    positions: Mapping[int, Position] = dataclasses.field(default_factory=dict)
    examples: int = 0
    rows: int = 0

    def of(self, number: int) -> Position:
        """The position in a task, by its number."""
        return self.positions.get(number, Position())

    def after(self, batch: dict[str, np.ndarray]) -> "Place":
        """The place behind a batch of `Stream.batch`. Takes what says so out of the batch."""
        if "rows" in batch:
            rows, examples = batch.pop("rows"), batch.pop("examples")
            return Place(_by_task(batch.pop("positions")[-1]), int(examples[-1]), int(rows[-1]))
        positions = batch.pop("position")
        return Place({**self.positions, **_by_task(positions)}, self.examples + len(positions))


BEGINNING = Place()


def _by_task(positions: np.ndarray) -> dict[int, Position]:
    """The last position of each task of `[n, POSITION_SIZE]`; beginnings are left out."""
    return {number: Position(*position) for number, *position in positions.tolist() if position[0] >= 0}


def shuffle_in_blocks(examples: tf.data.Dataset, size: int, seed: int) -> tf.data.Dataset:
    """Shuffles every `size` examples among themselves. Unlike a buffer that is refilled, two numbers describe it."""

    def shuffle(block):
        first = block["position"].take(1).get_single_element()
        shuffled = tf.data.Dataset.zip(block).shuffle(size, seed=hash_numbers(first) + seed)

        def number(taken, example):
            return {**example, "position": tf.concat([first, [taken]], axis=0)}

        return shuffled.enumerate(1).map(number)

    if size == 1:
        one = tf.constant([1], tf.int64)
        return examples.map(lambda example: {**example, "position": tf.concat([example["position"], one], axis=0)})
    # One block ahead: a training step does not wait until a block is full.
    return examples.window(size).prefetch(1).flat_map(shuffle)


def convert_in_groups(
    examples: tf.data.Dataset,
    converter: seqio.FeatureConverter,
    lengths: Mapping[str, int],
    place: Place,
    num_tasks: int,
) -> tf.data.Dataset:
    """The model's rows. `positions` and `examples` say where the group of a row begins, `rows` its number in there."""
    beginning = [[number, *dataclasses.astuple(place.of(number))] for number in range(num_tasks)]

    def remember(state, example):
        positions, count = state
        position = example.pop("position")
        after = tf.tensor_scatter_nd_update(positions, position[None, :1], position[None])
        return (after, count + 1), {"example": example, "positions": positions, "count": count}

    def convert(group):
        positions = group["positions"].take(1).get_single_element()
        count = group["count"].take(1).get_single_element()
        rows = converter(tf.data.Dataset.zip(group["example"]), lengths).enumerate(1)
        return rows.map(lambda number, row: {**row, "positions": positions, "examples": count, "rows": number})

    start = (tf.constant(beginning, tf.int64), tf.constant(place.examples, tf.int64))
    return examples.scan(start, remember).window(_EXAMPLES_PER_GROUP).prefetch(1).flat_map(convert)


def without_position(number: int, example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """An example of the task of this number whose place nobody can say."""
    return {**example, "position": tf.constant([number] + [-1] * (POSITION_SIZE - 1), tf.int64)}


@contextlib.contextmanager
def random_datasets_from(seed: tf.Tensor) -> Iterator[None]:
    """Adds a seed to those that SeqIO gives its random data sets, which must be known when a graph is built."""
    random = tf.data.Dataset.random
    tf.data.Dataset.random = staticmethod(lambda number: random(seed=seed + int(number)))
    try:
        yield
    finally:
        tf.data.Dataset.random = staticmethod(random)


def hash_numbers(numbers: tf.Tensor) -> tf.Tensor:
    """An int64 below 2^30 that follows from int64 `[n]`."""
    return tf.strings.to_hash_bucket_fast(tf.strings.reduce_join(tf.strings.as_string(numbers), separator=" "), 2**30)
