"""Tasks whose words have labels, such as the names in a text (NER): a label for the first piece of each word.

register_token_task(
    "my_names",
    TokenDataset(["O", "B-PER", "I-PER"]),
    data_files={"train": "train.jsonl", "validation": "validation.jsonl"},
    vocabulary="vocab/tokenizer.json",
)
"""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from limba.addons.word_labels.token_dataset import TokenDataset
from limba.data import token_rows
from limba.data.contract import TOKEN_TYPES
from limba.data.lint_findings import Finding
from limba.tasks.registry import Feature, Task, TaskRegistry, registering
from limba.tasks.registry.rows import TEXT, TOKENS, Columns, ColumnType, Rows, Tokens
from limba.tasks.registry.steps import Step
from limba.tasks.sources import class_names, corpora
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.supervised import row_preprocessor, supervised_tasks
from limba.tasks.vocabularies import LabelVocabulary, TokenizerVocabulary, Vocabulary, sentencepiece_models

_ROWS_PER_GROUP = 128


@registering.once(TaskRegistry)
def register_token_task(
    name: str,
    dataset: TokenDataset,
    *,
    vocabulary: Vocabulary | str | os.PathLike[str],
    data_files: Mapping[str, corpora.DataFiles] | Any = None,
    shuffle_buffer_size: int = 4096,
) -> Task:
    """Registers a data set of words with labels as a task for `classifier.TokenClassifier`.

    The inputs are `[CLS] text [SEP]`, or with a T5's vocabulary the text and EOS, where the text is the words with
    blanks between them. The targets have the same
    length: the label at the first piece of each word, as an id of a LabelVocabulary, and 0, which the loss leaves out,
    elsewhere. Predictions have one label a word.

    Args:
      name: of the task.
      vocabulary: a tokenizer.json, or that of a T5.
      data_files: per split a file, a pattern or a list of them (json, jsonl, parquet), or a SeqIO source; None streams
        the data set from the hub.
      shuffle_buffer_size: see `pretraining.register_pretraining_task`.

    Raises:
      ValueError: for a vocabulary that does not know words, or without data.
    """
    opened = sentencepiece_models.open_vocabulary(vocabulary)
    if not hasattr(opened, "encode_words"):
        raise ValueError(
            f"Task {name!r} has {opened!r}, which does not say where words begin: give a tokenizer.json, a "
            "SentencePiece model or a ByteVocabulary."
        )
    nested = (dataset.tokens, dataset.tags)
    if corpora.is_source(data_files):
        source = data_files
    elif data_files is not None:
        source = corpora.HuggingFaceSource(data_files, (), nested_columns=nested)
    elif dataset.hub is not None:
        source = corpora.HubSource(dataset.hub, dataset.config, (), splits=dataset.splits, nested_columns=nested)
    else:
        raise ValueError(f"Task {name!r} has no data: give data_files, or the hub's name in its TokenDataset.")
    labels = LabelVocabulary(dataset.labels)
    return TaskRegistry.add(
        name,
        source=source,
        preprocessors=[LabelTokens(name, dataset)],
        output_features={
            "inputs": Feature(opened),
            **(supervised_tasks.of_token_types() if isinstance(opened, TokenizerVocabulary) else {}),
            "targets": Feature(labels, add_eos=False),
        },
        postprocess_fn=_LabelsOfWords(labels),
        metric_fns=dataset.metrics,
        shuffle_buffer_size=shuffle_buffer_size,
    )


@dataclasses.dataclass(frozen=True)
class _LabelsOfWords:
    """Divides an answer into labels."""

    labels: LabelVocabulary

    def __call__(self, answer: str, **unused: Any) -> list[str]:
        return self.labels.split(answer)


@dataclasses.dataclass(frozen=True)
class LabelTokens(Step):
    """Tokenizes rows of words, and puts the label of each word at its first piece.

    Long rows are cut, and the log counts them; words without a piece, and those behind the cut, have no label.

    Attributes:
      task: its name, for messages.
      output_features, sequence_length: see `Supervise`; inputs and targets have the same length.
    """

    task: str
    dataset: TokenDataset
    output_features: Mapping[str, Feature] | None = None
    sequence_length: Mapping[str, int] | None = None

    labels_tokens = True

    @property
    def rows_per_group(self) -> int:
        return _ROWS_PER_GROUP

    def columns(self) -> dict[str, ColumnType]:
        types = {name: TOKENS for name in self.output_features or () if name.endswith(TOKEN_TYPES)}
        texts = {"inputs_pretokenized": TEXT, "targets_pretokenized": TEXT}
        return {"inputs": TOKENS, **types, "targets": TOKENS, **texts}

    def rows_function(self) -> Callable[[Rows, int], Rows]:
        """Raises ValueError if inputs and targets have different lengths."""
        assert self.output_features is not None
        vocabulary, labels = (self.output_features[name].vocabulary for name in ("inputs", "targets"))
        most = self._longest()
        types = [name for name in self.output_features if name.endswith(TOKEN_TYPES)]

        def make_rows(rows: Rows, seed: int) -> Rows:
            del seed
            found = list(self._all_words(rows))
            inputs, targets, kept = [], [], []
            read = token_rows.of_words(vocabulary, [words for words, _ in found], most)
            for (_, of_row), row in zip(found, read, strict=True):
                placed = np.zeros(len(row.ids), np.int32)
                labelled = self.dataset.placed(row.places, of_row, row.end)
                for place, label in labelled:
                    placed[place] = labels.encode(label)[0]
                inputs.append(row.ids)
                targets.append(placed)
                kept.append(labels.join(label for _, label in labelled).encode())
            if most is not None:
                row_preprocessor.warn_of_cut(self.task, "inputs", np.array([row.length for row in read]), most)
            made: Columns = {
                "inputs": Tokens.of(inputs),
                **{name: Tokens.of([row.types for row in read]) for name in types},
                "targets": Tokens.of(targets),
                "inputs_pretokenized": np.array([" ".join(words).encode() for words, _ in found], object),
                "targets_pretokenized": np.array(kept, object),
            }
            return rows.make(made)

        return make_rows

    def _longest(self) -> int | None:
        lengths = self.sequence_length or {}
        if lengths.get("inputs") != lengths.get("targets"):
            raise ValueError(
                f"Task {self.task!r} has a label for each token, and TASK_FEATURE_LENGTHS are {dict(lengths)}; give "
                "inputs and targets the same length."
            )
        return lengths.get("inputs")

    def check_rows(
        self,
        source: ShardedSource,
        split: str,
        features: Mapping[str, Feature],
        lengths: Mapping[str, int] | None = None,
    ) -> list[Finding]:
        """Looks at the first rows of a split, which finds wrong labels before anything expensive.

        Returns:
          A warning of rows that are longer than the model reads.

        Raises:
          ValueError: for a row whose words and labels cannot be read, which it names.
        """
        first = self._first_words(source, split)
        most = (lengths or {}).get("inputs")
        if most is None:
            return []
        vocabulary = features["inputs"].vocabulary
        num_tokens = np.array([row.length for row in token_rows.of_words(vocabulary, first)])
        return row_preprocessor.cut_texts(self.task, split, "inputs", num_tokens, most)

    def check_examples(self, source: ShardedSource, split: str) -> list[Finding]:
        """What `check_rows` finds without a vocabulary: nothing but its errors."""
        self._first_words(source, split)
        return []

    def _first_words(self, source: ShardedSource, split: str) -> list[list[str]]:
        """The words of the very first of the rows that are checked."""
        limit = row_preprocessor.ROWS_TO_CHECK[source.is_remote(split)]
        tags, labels = self.dataset.tags, self.dataset.labels
        class_names.check_numbers(tags, source.class_names(split, tags), dict(enumerate(labels)), repr(split))
        first: list[list[str]] = []
        for number, (file, row, document) in enumerate(itertools.islice(source.numbered_documents(split), limit)):
            words, _ = self._words(document, f"row {row} (the first is 0) of {file}")
            if number < row_preprocessor.ROWS_TO_TOKENIZE:
                first.append(words)
        return first

    def _all_words(self, rows: Rows) -> Iterator[tuple[list[str], list[str]]]:
        columns = {name: rows.columns[name] for name in (self.dataset.tokens, self.dataset.tags)}
        for i in range(len(rows.number)):
            row = {name: x[i].decode() if isinstance(x[i], bytes) else x[i] for name, x in columns.items()}
            yield self._words(row, rows.place(i))

    def _words(self, row: Mapping[str, Any], where: str) -> tuple[list[str], list[str]]:
        try:
            return self.dataset.words(row)
        except (ValueError, KeyError) as error:
            raise ValueError(row_preprocessor.bad_row(self.task, where, error)) from error
