"""Names the tasks of SeqIO's whose preprocessors drop every example, while the first one is waited for.

TensorFlow repeats their documents for ever, in a call that nothing can end. What would find them costs seconds a task,
as TensorFlow traces it, so only a start that waits for long looks.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from limba.addons.seqio import tf_iterators
from limba.data import contract

logger = logging.getLogger(__name__)

# Until somebody looks, and how many documents of each task are looked at.
_SECONDS, _NUM_DOCUMENTS = 30.0, 1000


@contextlib.contextmanager
def named(tasks: Sequence[Any], config: contract.DatasetConfig) -> Iterator[None]:
    """A context that waits for the first example of tasks of SeqIO's, and logs an error for one that makes none."""
    timer = threading.Timer(_SECONDS, _say, (tasks, config))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(tasks: Sequence[Any], config: contract.DatasetConfig) -> None:
    for task in tasks:
        if problem := describe(task, config):
            logger.error("%s", problem)


def describe(task: Any, config: contract.DatasetConfig) -> str:
    """A sentence if no example is made of the first documents of a task; "" if one is."""
    documents = task.source.get_dataset(split=config.split, shuffle=False, seed=0).take(_NUM_DOCUMENTS)
    with tf_iterators.building:
        found = task.preprocess_precache(documents, seed=0)
        found = task.preprocess_postcache(found, sequence_length=config.task_feature_lengths, seed=0)
    if next(iter(found), None) is not None:
        return ""
    count = int(documents.reduce(tf.constant(0, tf.int64), lambda n, _: n + 1))
    which = f"its {count:,} documents" if count < _NUM_DOCUMENTS else f"its first {count:,} documents"
    return (
        f"No example is made of {which}: task {task.name!r}, split {config.split!r}. Its preprocessors drop all of "
        "them, such as with seqio.preprocessors' filters; look at what each makes of a document."
    )
