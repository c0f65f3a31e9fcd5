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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from limba.data import token_rows
from limba.data.contract import TOKEN_TYPES
from limba.data.lint_findings import Finding
from limba.tasks.metrics import tagging_metrics
from limba.tasks.metrics.text_metrics import MetricFn
from limba.tasks.registry import Feature, Task, TaskRegistry, registering
from limba.tasks.registry.rows import TEXT, TOKENS, Columns, ColumnType, Rows, Tokens
from limba.tasks.registry.steps import Step
from limba.tasks.sources import class_names, corpora
from limba.tasks.sources.sharded import ShardedSource
from limba.tasks.supervised import row_preprocessor, supervised_tasks
from limba.tasks.supervised.cell_texts import plain_text
from limba.tasks.supervised.row_formats import record_of
from limba.tasks.vocabularies import LabelVocabulary, TokenizerVocabulary, Vocabulary, sentencepiece_models

_ROWS_PER_GROUP = 128


@dataclasses.dataclass(frozen=True)
class TokenDataset:
    """A data set of words with labels.

    Attributes:
      labels: their texts, in order. The tags of a row are these texts, or their numbers, as ClassLabel has them.
      tokens, tags: the columns with the words of a row and with their tags; both are lists.
      metric_fns: of lists of labels; None is `tagging_metrics.token_accuracy` and `tagging_metrics.entity_f1`, if the
        labels are BIO's, or else `tagging_metrics.word_scores`.
      hub, config, splits: as of `SupervisedDataset`.
    """

    labels: Sequence[str]
    tokens: str = "tokens"
    tags: str = "tags"
    metric_fns: Sequence[MetricFn] | None = None
    hub: str | None = None
    config: str | None = None
    splits: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if wrong := [x for x in LabelVocabulary(self.labels).labels if x != plain_text(x)]:
            raise ValueError(
                f"TokenDataset.labels has {wrong[0]!r}; labels of tokens have single blanks inside and no other "
                f"space: write {plain_text(wrong[0])!r}."
            )

    @property
    def metrics(self) -> list[MetricFn]:
        if self.metric_fns is not None:
            return list(self.metric_fns)
        is_bio = tagging_metrics.are_bio(self.labels)
        of_labels = tagging_metrics.entity_f1 if is_bio else tagging_metrics.word_scores(self.labels)
        return [tagging_metrics.token_accuracy, of_labels]

    def words(self, row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """The words of a row, and their labels.

        Raises:
          ValueError: if a word has no label, or one that is not known; or a number that may be a label or its place.
        """
        words, tags = record_of(row[self.tokens]), record_of(row[self.tags])
        for column, found in ((self.tokens, words), (self.tags, tags)):
            if not isinstance(found, list):
                raise ValueError(f"column {column!r} has {found!r}, which is not a list")
        if wrong := [word for word in words if not isinstance(word, str) or word.split() != [word]]:
            raise ValueError(f"column {self.tokens!r} has {wrong[0]!r}, which is not a word")
        if len(words) != len(tags):
            raise ValueError(f"there are {len(words)} words and {len(tags)} tags; each word has one")
        return words, [self._label(tag) for tag in tags]

    def placed(self, places: Sequence[int], labels: Sequence[str], end: int) -> list[tuple[int, str]]:
        """The labelled places of a row whose text ends at `end`: of each word its first piece, if it is there."""
        return [(place, label) for place, label in zip(places, labels, strict=True) if 0 <= place < end]

    def _label(self, tag: Any) -> str:
        tag = plain_text(tag) if isinstance(tag, str) else tag
        if tag in self.labels:
            return str(tag)
        if isinstance(tag, int) and not isinstance(tag, bool) and 0 <= tag < len(self.labels):
            if str(tag) in self.labels and self.labels[tag] != str(tag):
                raise ValueError(
                    f"column {self.tags!r} has the number {tag}, which is the label {str(tag)!r} or the place of "
                    f"{self.labels[tag]!r} in the labels {', '.join(self.labels)}: write the tags as texts"
                )
            return self.labels[tag]
        raise ValueError(f"column {self.tags!r} has the tag {tag!r}; the known labels are {', '.join(self.labels)}")


@dataclasses.dataclass(frozen=True)
class PieceDataset(TokenDataset):
    """A data set whose words have their label at each of their pieces: run_ner.py's `label_all_tokens`.

    The label of a piece behind the first is that of the inside, I-PER for B-PER, where there is one. Predictions and
    metrics have one label a piece.
    """

    def placed(self, places: Sequence[int], labels: Sequence[str], end: int) -> list[tuple[int, str]]:
        begins = super().placed(places, labels, end)
        ends = [*(place for place, _ in begins[1:]), end]
        return [
            (piece, label if piece == place else self._inside(label))
            for (place, label), end in zip(begins, ends, strict=True)
            for piece in range(place, end)
        ]

    def _inside(self, label: str) -> str:
        inside = f"I-{label.removeprefix('B-')}"
        return inside if label.startswith("B-") and inside in self.labels else label


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
