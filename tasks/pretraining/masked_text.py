"""An objective over a corpus that a gin file names, without a Python module: a task of the pipeline.

MIXTURE_OR_TASK_NAME = @masked_text.task()
masked_text.task:
  name = 'my_corpus'
  vocabulary = %VOCABULARY
  files = {'train': ['corpus/train.jsonl'], 'validation': ['corpus/validation.jsonl']}
"""

from collections.abc import Mapping, Sequence
from typing import Any

from limba.checkpoint_files import run_folder
from limba.tasks.objectives import Objective
from limba.tasks.pretraining import pretraining_tasks
from limba.tasks.sources import corpora
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.vocabularies import (
    ByteVocabulary,
    SentencePieceVocabulary,
    T5TokenizerVocabulary,
    TokenizerVocabulary,
    Vocabulary,
)

# One source for each corpus: it is opened once, and a task registered again is the same task.
_sources: dict[str, ShardedSource] = {}


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
