"""Checks of sources that are not ours: SeqIO's own, functions of a user's, offline caches."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from limba.addons.seqio.seqio_streams import check_cached, may_be_endless, num_shards, reads_cache
from limba.data import contract
from limba.data.lint_findings import Finding, refused, unreadable

# How much of a split is read to see whether it ends: documents, and seconds.
_MAX_DOCUMENTS, _MAX_SECONDS = 20_000, 15.0
# Documents that have to repeat, one after the other, for a stream to have begun again.
_REPEATED = 3


def check(task: Any, config: contract.DatasetConfig, role: str, steps: int | None) -> Iterator[Finding]:
    """Findings about the source of a task; for `role` and `steps` see `limba.addons.plan.data.lint_tasks.Purpose`."""
    if reads_cache(task, config):
        try:
            check_cached(task)
        except ValueError as error:
            yield refused("no_cache", str(error))
        return
    if role == "train":
        yield from _check_shards(task, config)
        yield from _check_generator(task, config)
    elif may_be_endless(task, config):
        yield from _check_end(task, config, role, steps)


def _check_shards(task: Any, config: contract.DatasetConfig) -> Iterator[Finding]:
    num_readers = config.num_readers or contract.default_num_readers(config.batch_size)
    shards = num_shards(task, config)
    if shards is not None and shards < num_readers:
        yield Finding(
            "unshardable_source",
            "warning",
            f"The source of task {task.name!r} has {shards} {'shard' if shards == 1 else 'shards'} for {num_readers} "
            "readers.",
            f"every host downloads and tokenizes everything and keeps its share: {num_readers} times the work with "
            f"{num_readers} hosts",
            "Read the corpus with tasks.sources.HuggingFaceSource (docs/data.md), or give it as that many files.",
        )


def _check_generator(task: Any, config: contract.DatasetConfig) -> Iterator[Finding]:
    try:
        dataset = task.source.get_dataset(config.split, shuffle=False, seed=0)
    except Exception as error:  # A source of the user's own may raise anything.
        yield unreadable(task, config, error)
        return
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset), external_state_policy=1, strip_device_assignment=True
    )
    if b"GeneratorDataset" in graph.numpy():
        yield Finding(
            "generator_source",
            "warning",
            f"The source of task {task.name!r} is a Python generator, whose place in the data nothing can save.",
            "a restart reads all earlier batches again before it resumes; in T5X it begins at the first document again",
            "Read the corpus with tasks.sources.HuggingFaceSource (docs/data.md).",
        )


def _check_end(task: Any, config: contract.DatasetConfig, role: str, steps: int | None) -> Iterator[Finding]:
    """Reads a split until it ends, repeats itself, or the limits of the check are reached."""
    first: list[bytes] = []
    repeated = number = 0
    began = time.monotonic()
    observed = "did not end"
    try:
        dataset = task.source.get_dataset(config.split, shuffle=False, seed=0)
        for number, example in enumerate(dataset.as_numpy_iterator()):
            document = b"\0".join(np.asarray(x).tobytes() for x in tf.nest.flatten(example))
            if len(first) < _REPEATED:
                first.append(document)
                continue
            repeated = repeated + 1 if document == first[repeated] else int(document == first[0])
            if repeated == _REPEATED:
                observed = f"began again after {number + 1 - _REPEATED} documents"
                break
            if number >= _MAX_DOCUMENTS or time.monotonic() - began > _MAX_SECONDS:
                observed = f"did not end within {number + 1} documents"
                break
        else:
            return
    except Exception as error:  # A source of the user's own may raise anything.
        yield unreadable(task, config, error)
    whole = steps is None
    problem = f"The split {config.split!r} of task {task.name!r} is not known to end"
    yield Finding(
        "endless_evaluation",
        "error" if whole else "warning",
        f"{problem}: when it was read it {observed}." if number else f"{problem}: its source is a function of its own.",
        "the first evaluation never ends, and training waits for it"
        if whole
        else f"every evaluation sees the same {steps} batches, and no loss is of the whole split",
        "Evaluate a split that ends (tasks.sources.HuggingFaceSource makes one pass)"
        + (", or set train.eval_steps." if whole and role == "train_eval" else "."),
    )
