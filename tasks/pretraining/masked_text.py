"""An objective over a corpus that a gin file names, without a Python module: a task of the pipeline.

MIXTURE_OR_TASK_NAME = @masked_text.task()
masked_text.task:
  name = 'my_corpus'
  vocabulary = %VOCABULARY
  files = {'train': ['corpus/train.jsonl'], 'validation': ['corpus/validation.jsonl']}
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from limba.checkpoint_files import run_folder
from limba.files import setting_names
from limba.tasks.objectives import Objective
from limba.tasks.pretraining import denoising, pretraining_tasks
from limba.tasks.sources import corpora
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.vocabularies import (
    ByteVocabulary,
    SentencePieceVocabulary,
    T5TokenizerVocabulary,
    TokenizerVocabulary,
    Vocabulary,
)
from limba.tasks.vocabularies.vocabulary import encode_batch

# One source for each corpus: it is opened once, and a task registered again is the same task.
_sources: dict[str, ShardedSource] = {}
# Documents that are tokenized to estimate the length of all.
_SAMPLE = 20_000


def task(
    name: str,
    vocabulary: Vocabulary,
    files: Mapping[str, Sequence[str]] | None = None,
    dataset: str | None = None,
    dataset_config: str | None = None,
    splits: Mapping[str, str] | None = None,
    text_column: str = "text",
    objective: Objective | None = None,
    noise_density: float = 0.15,
    mean_noise_span_length: float = 3.0,
    shuffle_buffer_size: int = 4096,
    line_by_line: bool = False,
) -> str:
    """Registers the task, unless it is there already, and returns its name.

    The corpus is that of `open_source`; for the other arguments see `pretraining.register_pretraining_task`.

    Raises:
      ValueError: as `open_source`; if the name is taken by a task with other arguments.
    """
    return pretraining_tasks.register_pretraining_task(
        name,
        data_files=open_source(files, dataset, dataset_config, splits, text_column),
        vocabulary=vocabulary,
        text_column=text_column,
        objective=objective,
        noise_density=noise_density,
        mean_noise_span_length=mean_noise_span_length,
        shuffle_buffer_size=shuffle_buffer_size,
        line_by_line=line_by_line,
    ).name


def open_source(
    files: Mapping[str, Sequence[str]] | None = None,
    dataset: str | None = None,
    dataset_config: str | None = None,
    splits: Mapping[str, str] | None = None,
    text_column: str = "text",
) -> ShardedSource:
    """The documents; nothing is read yet.

    Args:
      files: local files or URLs by split; or
      dataset: a data set on the hub, of which `dataset_config` is a configuration.
      splits: parts of splits under names, `{"train": "train[5%:]", "validation": "train[:5%]"}`.

    Raises:
      ValueError: unless there is one of `files` and `dataset`.
    """
    if (files is None) == (dataset is None):
        raise ValueError(f"masked_text: files is {files!r} and dataset {dataset!r}; give one of them.")
    key = repr((files, dataset, dataset_config, splits, text_column))
    if key not in _sources:
        if files is not None:
            _sources[key] = corpora.HuggingFaceSource(files, [text_column], splits=splits)
        else:
            assert dataset is not None
            _sources[key] = corpora.HubSource(dataset, dataset_config, [text_column], splits=splits)
    return _sources[key]


def open_vocabulary(described: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary that a checkpoint's `run.json` describes."""
    if described["class"] == run_folder.BYTES:
        return ByteVocabulary(described["extra_ids"])
    if described["class"] == run_folder.TOKENIZERS:
        return TokenizerVocabulary(described["tokenizer_file"])
    if described["class"] == run_folder.T5_TOKENIZERS:
        return T5TokenizerVocabulary(described["tokenizer_file"])
    return SentencePieceVocabulary(described["sentencepiece_model_file"], described["extra_ids"])


def count_examples(
    source: ShardedSource, split: str, text_column: str, vocabulary: Vocabulary, objective: Objective,
    inputs_length: int,
) -> tuple[int, bool]:  # fmt: skip
    """How many examples one pass over a split makes, and whether that is exact.

    Raises:
      FileNotFoundError, ValueError: as `ShardedSource.check`; also if there is not enough text for one example.
    """
    total, is_exact = count_tokens(source, split, text_column, vocabulary)
    raw_length = objective.raw_length(inputs_length)
    if total < raw_length:
        raise ValueError(
            f"The split {split!r} has {total} tokens, and one example of {inputs_length} inputs takes "
            f"{raw_length}: give more text, or fewer inputs in {setting_names.shown('TASK_FEATURE_LENGTHS', 'inputs')}."
        )
    return total // raw_length, is_exact


def check(source: ShardedSource, split: str, text_column: str) -> None:
    """`ShardedSource.check`, and whether there is a text.

    Raises:
      ValueError: also if the column has numbers, or no document of the split has a text.
    """
    for document in (document for batch in source.documents(split) for document in batch):
        value = document[text_column]
        if not isinstance(value, str | None):
            raise ValueError(
                f"Column {text_column!r} of split {split!r} has {value!r}, and documents are texts; the columns are "
                f"{', '.join(map(repr, source.column_names(split)))}: name the one with the texts: "
                f"{setting_names.shown('text_column')}."
            )
        if (value or "").strip():
            return
    raise ValueError(f"No document of split {split!r} has a text: its column {text_column!r} is empty or blank.")


def count_lines(source: ShardedSource, split: str, text_column: str) -> int:
    """The documents of a split that are not blank."""
    return sum(bool((document[text_column] or "").strip()) for batch in source.documents(split) for document in batch)


def documents_of_examples(
    source: ShardedSource, split: str, text_column: str, vocabulary: Vocabulary, raw_length: int, examples: int,
    line_by_line: bool = False,
) -> tuple[int, int]:  # fmt: skip
    """How many of a split's first documents make `examples`, and how many these make: more if the last one is long.

    With `line_by_line` each that is not blank makes one. All documents where they make fewer. Beyond 20,000 documents
    the number follows from the mean length of these.
    """
    num_tokens = num_documents = 0
    for batch in source.documents(split):
        texts = [(document[text_column] or "").encode() for document in batch]
        _, lengths = encode_batch(vocabulary, denoising.without_blanks(texts) if line_by_line else texts)
        if line_by_line:
            lengths, raw_length = np.minimum(lengths, 1), 1
        totals = num_tokens + np.cumsum(lengths)
        last = int(np.searchsorted(totals, examples * raw_length))
        if last < len(batch):
            return num_documents + last + 1, int(totals[last]) // raw_length
        num_documents, num_tokens = num_documents + len(batch), int(totals[-1])
        if num_documents >= _SAMPLE:
            return -(-examples * raw_length * num_documents // max(num_tokens, 1)), examples
    return num_documents, num_tokens // raw_length


def count_tokens(source: ShardedSource, split: str, text_column: str, vocabulary: Vocabulary) -> tuple[int, bool]:
    """The tokens of a split's documents, and whether that is exact.

    Up to 20,000 documents are tokenized; in a larger corpus these give the mean length.
    """
    num_tokens = num_documents = 0
    batches = source.documents(split)
    for batch in batches:
        tokens, _ = encode_batch(vocabulary, [(document[text_column] or "").encode() for document in batch])
        num_tokens += len(tokens)
        num_documents += len(batch)
        if num_documents >= _SAMPLE:
            break
    rest = sum(map(len, batches))
    return num_tokens * (num_documents + rest) // max(num_documents, 1), not rest
