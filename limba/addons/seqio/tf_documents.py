"""A reader's documents as a `tf.data` pipeline, for SeqIO and T5X.

It is a pure function of counters: `tf.data` saves such a pipeline to the last element, shuffle buffers included, when
external state is ignored; it cannot save a generator.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from limba.tasks.sources.chunks import ReaderChunks

# More counters than any run uses up.
_FOREVER = 2**62


def documents(chunks: ReaderChunks, num_epochs: int | None) -> tf.data.Dataset:
    """The columns of `ReaderChunks.documents`, document by document."""
    types = [
        tf.dtypes.as_dtype(np.dtype(dtype)) if dtype is not object else tf.string for dtype in chunks.dtypes.values()
    ]

    def pieces_of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        order = tf.numpy_function(lambda epoch: chunks.order_of_epoch(int(epoch)), [epoch], tf.int64, stateful=False)
        order.set_shape([None])
        return tf.data.Dataset.from_tensor_slices(order).map(lambda index: (epoch, index))

    def chunks_of_piece(epoch: tf.Tensor, index: tf.Tensor) -> tf.data.Dataset:
        first = tf.numpy_function(
            lambda epoch, index: np.int64(chunks.first_chunk(int(epoch), int(index))),
            [epoch, index], tf.int64, stateful=False,
        )  # fmt: skip
        first.set_shape([])

        def numbered_chunk(chunk: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
            *columns, has_rows = tf.numpy_function(read, [epoch, index, chunk], [*types, tf.bool], stateful=False)
            for column in columns:
                column.set_shape([None])
            has_rows.set_shape([])
            return dict(zip(chunks.dtypes, columns, strict=True)), has_rows

        numbered = tf.data.Dataset.range(first, _FOREVER).map(numbered_chunk)
        return numbered.take_while(lambda columns, has_rows: has_rows).map(lambda columns, has_rows: columns)

    def read(epoch: Any, index: Any, chunk: Any) -> list[Any]:
        columns, ids, has_rows = chunks.read_chunk(int(epoch), int(index), int(chunk))
        for name, values in columns.items():
            if values.dtype == object and chunks.dtypes[name] is not object:
                row = next(int(row) for value, (_, _, row) in zip(values, ids, strict=True) if not value)
                raise ValueError(
                    f"Column {name!r} has no number in row {row} (the first is 0), and tensors of numbers have no "
                    "missing value: fill this cell, leave the row out, or do not read the column."
                )
        return [*columns.values(), np.bool_(has_rows)]

    epochs = tf.data.Dataset.range(chunks.first_epoch, _FOREVER if num_epochs is None else num_epochs)
    return epochs.flat_map(pieces_of_epoch).flat_map(chunks_of_piece).unbatch()
