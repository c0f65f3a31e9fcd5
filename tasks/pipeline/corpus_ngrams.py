"""Counts of a task's training texts."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from limba.data.contract import DatasetConfig
from limba.tasks.ngrams.counts import NgramCounts
from limba.tasks.ngrams.spliced_texts import splice
from limba.tasks.pipeline import task_batches
from limba.tasks.vocabularies import sentencepiece_models

# Of the training split, at a time.
_ROWS = 64


def count(
    config: DatasetConfig,
    vocabulary: Any,
    feature_converter: Any,
    most_tokens: int,
    check: Callable[[], None] = lambda: None,
    trigrams: bool = True,
    before: bool = True,
) -> NgramCounts:
    """Counts of the texts of a split in the order of its files, each once, until `most_tokens` were read.

    The tasks of a mixture are read in turn, a batch of each, whatever their rates are.

    Args:
      config: of the training; its batch size and order do not matter.
      vocabulary: of the targets; the inputs have the same.
      feature_converter: the model's.
      check: called before each batch; it may raise.
      trigrams, before: False leaves these tables empty.

    Raises:
      ValueError, FileNotFoundError: as `tasks.pipeline.task_batches.get_eval_batches`.
    """
    ids = sentencepiece_models.ids_of(vocabulary)
    counts = NgramCounts(ids.vocab_size, trigrams=trigrams, before=before)
    sets = task_batches.get_eval_batches(read_once(config, _ROWS), feature_converter)
    if len(sets) > 1:
        sets = {task: batches for task, batches in sets.items() if task != config.name}
    with tqdm(total=most_tokens, desc="counting n-grams", unit=" tokens", unit_scale=True, disable=None) as bar:
        for batch in filter(None, itertools.chain.from_iterable(itertools.zip_longest(*sets.values()))):
            check()
            counted = counts.num_tokens
            counts.add(splice(batch, ids))
            counts.add_targets(batch)
            bar.update(counts.num_tokens - counted)
            if counts.num_tokens >= most_tokens:
                break
    return counts


def read_once(config: DatasetConfig, rows: int) -> DatasetConfig:
    """The configuration of an evaluation, so many rows at a time, each once and in the order of the files."""
    return dataclasses.replace(config, batch_size=rows, num_readers=None, shuffle=False, use_memory_cache=False)
