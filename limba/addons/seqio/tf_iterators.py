"""Reading `tf.data` pipelines: elements as NumPy arrays, errors as ours, and parts that pipelines are made of."""

import contextlib
import functools
import re
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from limba.tasks.pipeline.readers import ReadingError


def in_order(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A pipeline that makes the same elements each time, and whose position TensorFlow can save."""
    options = tf.data.Options()
    options.deterministic = True
    # Random seeds and NumPy functions count as external state; ours are functions of their arguments.
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    # Autotuning changes buffers, whose contents belong to a position that TensorFlow saves.
    options.autotune.enabled = False
    return dataset.with_options(options)


# What TensorFlow puts before the reason of an error.
_FRAME = re.compile(
    r"^(\{\{.*?\}\} )?(Error in user-defined function passed to .*? with iterator: \S+: )?(\{\{.*?\}\} )?"
)


def read(dataset: tf.data.Dataset) -> Iterator[dict[str, Any]]:
    """The elements, as dicts of NumPy arrays; raises `ReadingError` with what went wrong."""
    iterator = iter(dataset)
    while True:
        try:
            yield next_element(iterator)
        except StopIteration:
            return


def next_element(iterator: Any) -> dict[str, Any]:
    """The next element as NumPy arrays.

    Raises:
      ReadingError: with the error of a reading function, which TensorFlow wraps into its own with a traceback as text.
    """
    try:
        return {name: value.numpy() for name, value in next(iterator).items()}
    except tf.errors.OpError as error:
        lines = [line for line in error.message.splitlines() if line.strip()]
        reasons = filter(None, (re.search(r"\w+Error: .*", line) for line in lines))
        raise ReadingError(next((found[0] for found in reasons), _FRAME.sub("", lines[0]))) from error


# Held while a pipeline of SeqIO's is built: the seeds of its steps are counted in a global variable of SeqIO's, and
# readers are threads.
building = threading.RLock()
_of_thread = threading.local()
_random_dataset = tf.data.Dataset.random


@functools.wraps(_random_dataset)
def _random(seed: Any = None, *args: Any, **kwargs: Any) -> tf.data.Dataset:
    added = getattr(_of_thread, "seed", None)
    return _random_dataset(seed if added is None else added + int(seed), *args, **kwargs)


tf.data.Dataset.random = staticmethod(_random)


@contextlib.contextmanager
def random_datasets_from(seed: tf.Tensor) -> Iterator[None]:
    """Adds a seed to those that SeqIO gives its random data sets in this thread, when it builds a graph."""
    with building:
        _of_thread.seed = seed
        try:
            yield
        finally:
            del _of_thread.seed


def hash_numbers(numbers: tf.Tensor) -> tf.Tensor:
    """`tasks.registry.philox.hash_numbers` of int64 `[n]`."""
    return tf.strings.to_hash_bucket_fast(tf.strings.reduce_join(tf.strings.as_string(numbers), separator=" "), 2**30)
