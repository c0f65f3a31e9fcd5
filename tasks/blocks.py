"""A denoising task's examples as blocks of rows: whole arrays all the way from the documents to the batch.

What `tf.data` does for a single element, again in every step, costs more than tokenizing and corrupting it. A task
whose only preprocessor is `Denoise` needs no such step: its groups of documents become arrays of full rows, arrays are
cut into blocks, and a block is shuffled by one gather.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tasks import preprocessors
from tasks.positions import POSITION_SIZE, Position

# A position without what is taken of a block.
_GROUP_POSITION_SIZE = POSITION_SIZE - 1
# A block's features, both padded to their length.
_FEATURES = ("inputs", "targets")


def rows(
    groups: tf.data.Dataset,
    denoise: preprocessors.Denoise,
    lengths: Mapping[str, int],
    buffer_size: int,
    key: tuple[int, int],
    start: Position,
) -> tf.data.Dataset:
    """Blocks of shuffled rows.

    Args:
      groups: documents, batched, from the one that `start` names.
      denoise: bound to the task's features and lengths.
      lengths: to which rows are padded.
      buffer_size: rows of a block; 1 leaves them in order.
      key: the seed of order and corruption, and the task's number.
      start: where the first block begins, and what is taken of it.

    Returns:
      `inputs` and `targets`, int32 `[rows, length]`; `epoch`, int64 `[rows]`, of the document that the row begins in;
      and `position`, int64 `[rows, POSITION_SIZE]`: the task's number and the `Position` of what follows.
    """
    if buffer_size > 1:
        made = _rows_of_groups(groups, denoise, key, lengths, start.example)
        return _shuffle_rows(made, buffer_size, key[0], start.taken)
    # Each row is a block of its own, of which one is taken.
    made = _rows_of_groups(groups, denoise, key, lengths, start.example + start.taken)
    return made.map(lambda block: {**block, "position": tf.pad(block["position"], [[0, 0], [0, 1]], constant_values=1)})


def _rows_of_groups(
    groups: tf.data.Dataset, denoise: preprocessors.Denoise, key: tuple[int, int], lengths: Mapping[str, int], skip: int
) -> tf.data.Dataset:
    """The rows of each group in order, without the first `skip`; a `position` without what is taken."""
    make_examples = denoise.function()
    seed, task = key

    def make_rows(texts, documents, first_row):
        first = documents[0]
        group_seed = int(np.random.default_rng([seed, task, *first]).integers(2**63))
        features, begin_in = make_examples(texts, group_seed)
        number = np.arange(first_row, len(begin_in))
        position = np.empty((len(number), _GROUP_POSITION_SIZE), np.int64)
        position[:, 0], position[:, 1:4], position[:, 4] = task, first, number
        padded = [_pad(features[name][0][first_row:], lengths[name]) for name in _FEATURES]
        return *padded, documents[begin_in[first_row:], 0], position

    def map_group(index, group):
        first_row = tf.where(index == 0, tf.constant(skip, tf.int64), 0)
        *features, epoch, position = tf.numpy_function(
            make_rows,
            [group[denoise.text_column], group["document"], first_row],
            [tf.int32, tf.int32, tf.int64, tf.int64],
            stateful=False,
        )
        for name, rows in zip(_FEATURES, features, strict=True):
            rows.set_shape([None, lengths[name]])
        epoch.set_shape([None])
        position.set_shape([None, _GROUP_POSITION_SIZE])
        return {**dict(zip(_FEATURES, features, strict=True)), "epoch": epoch, "position": position}

    return groups.enumerate().map(map_group)


def _shuffle_rows(rows: tf.data.Dataset, size: int, seed: int, taken: int) -> tf.data.Dataset:
    """Blocks of `size` rows, each shuffled, without the first `taken` of them: `shuffle_in_blocks` with arrays."""

    def choose(position, taken):
        order = np.random.default_rng([seed, *position[0]]).permutation(len(position))
        numbered = np.empty((len(position), POSITION_SIZE), np.int64)
        numbered[:, :-1], numbered[:, -1] = position[0], np.arange(1, len(position) + 1)
        return order[taken:], numbered[taken:]

    def shuffle(index, block):
        left_out = tf.where(index == 0, tf.constant(taken, tf.int64), 0)
        order, position = tf.numpy_function(
            choose, [block.pop("position"), left_out], [tf.int64, tf.int64], stateful=False
        )
        order.set_shape([None])
        position.set_shape([None, POSITION_SIZE])
        return {name: tf.gather(values, order) for name, values in block.items()} | {"position": position}

    # One block ahead: a training step does not wait until a block is full.
    return rows.rebatch(size).enumerate().map(shuffle).prefetch(1)


def _pad(rows: np.ndarray, length: int) -> np.ndarray:
    padded = np.zeros((len(rows), length), np.int32)
    kept = min(length, rows.shape[1])
    padded[:, :kept] = rows[:, :kept]
    return padded
