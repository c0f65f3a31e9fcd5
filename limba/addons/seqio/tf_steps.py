"""A step of ours as a preprocessor of `tf.data` pipelines."""

from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from limba.tasks.registry.rows import ColumnType, Rows, Tokens


# AutoGraph would convert all Python, which takes a second for each pipeline.
@tf.autograph.experimental.do_not_convert
def apply(step: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Runs a step on the examples of a `tf.data.Dataset`, many at a time.

    Args:
      step: a `tasks.registry.steps.Step`, bound to features and lengths.
      dataset: its examples are of scalars: documents, or rows of a table.
    """
    function, columns = step.rows_function(), step.columns()
    names = list(dataset.element_spec)

    def make(number: np.ndarray, seed_high: Any, seed_low: Any, *values: np.ndarray) -> list[np.ndarray]:
        unknown = np.full((len(number), 3), -1, np.int64)
        rows = Rows(dict(zip(names, values, strict=True)), unknown, number)
        made = function(rows, (int(seed_high) << 32) ^ int(seed_low)).columns
        arrays: list[np.ndarray] = []
        for name in columns:
            column = made[name]
            arrays += column if isinstance(column, Tokens) else [column]
        return arrays

    def map_batch(numbered: Any, seed: Any) -> tuple[tf.Tensor, ...]:
        number, row = numbered
        types = [tf_type for kind in columns.values() for tf_type, _ in _tensors(kind)]
        made = tf.numpy_function(make, [number, *seed, *(row[name] for name in names)], types, stateful=False)
        shapes = [shape for kind in columns.values() for _, shape in _tensors(kind)]
        return tuple(tf.ensure_shape(x, shape) for x, shape in zip(made, shapes, strict=True))

    def to_features(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        rest = iter(tensors)
        return {name: next(rest)[: next(rest)] if kind.is_tokens else next(rest) for name, kind in columns.items()}

    batches = dataset.enumerate().batch(step.rows_per_group)
    if step.is_random:
        # One batch at a time: batches made in advance would have to be saved with the position.
        made = seqio.map_over_dataset(map_batch, num_seeds=1, num_parallel_calls=None)(batches)
    else:
        made = batches.map(lambda *numbered: map_batch(numbered, (0, 0)))
    return made.unbatch().map(to_features)


def _tensors(kind: ColumnType) -> list[tuple[tf.DType, list[int | None]]]:
    """Types and shapes of the tensors of a column."""
    if kind.is_tokens:
        return [(tf.int32, [None, None]), (tf.int64, [None])]
    dtype = tf.string if kind.dtype is object else tf.dtypes.as_dtype(kind.dtype)
    return [(dtype, [None, *kind.shape])]
