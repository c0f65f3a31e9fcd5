"""The preprocessor of supervised tasks: rows become tokens of a text and of its answer, a batch of rows at a time."""

import dataclasses
import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from tasks import preprocessors
from tasks.sharded_source import ShardedSource
from tasks.supervised_formats import Example, Format, Template

logger = logging.getLogger(__name__)

_ROWS_PER_BATCH = 128
# Rows whose labels are looked at before a run: of a file here, and of one that is far away.
_ROWS_TO_CHECK = {False: 100_000, True: 256}

# Task and labels that a warning was given of.
_warned: set[tuple[str, ...]] = set()


@dataclasses.dataclass(frozen=True)
class Supervise:
    """Makes examples of rows by a format, tokenizes them, and appends EOS; what is too long is cut, counted and said.

    Examples have `inputs` and `targets`, both also `_pretokenized`, and `reference`, JSON for the metrics ("null" where
    the targets are enough). With `ranks` there is an example for each choice, and, as T5's `rank_classification` makes
    them, `idx`, the number of the row and of the choice, and `is_correct`.

    Attributes:
      task: the task's name, for messages.
      format: see `supervised_formats`.
      ranks: whether each choice is an example.
      output_features: set by SeqIO.
      sequence_length: set by SeqIO; None cuts nothing.
    """

    task: str
    format: Format
    ranks: bool = False
    output_features: Mapping[str, seqio.Feature] | None = None
    sequence_length: Mapping[str, int] | None = None

    def check_rows(
        self,
        source: ShardedSource,
        split: str,
        features: Mapping[str, seqio.Feature],
        lengths: Mapping[str, int] | None = None,
    ) -> None:
        """Makes examples of the first rows of a split, which finds wrong labels before anything expensive.

        Raises:
          ValueError: for a row that makes no example, which it names; for labels whose tokens are the same.
        """
        self._check_labels(features["targets"], (lengths or {}).get("targets"))
        limit = _ROWS_TO_CHECK[source.is_remote(split)]
        num_rows = num_empty = 0
        for file, row, document in itertools.islice(source.numbered_documents(split), limit):
            num_rows += 1
            try:
                examples = self.format(document)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                raise ValueError(_bad_row(self.task, f"row {row} (the first is 0) of {file}", error)) from error
            num_empty += any(not example.targets.strip() for example in examples)
        if num_empty:
            logger.warning(
                "%s: %d of the first %d rows of split %r have no answer: the model learns to say nothing.",
                *(self.task, num_empty, num_rows, split),
            )

    def _check_labels(self, feature: seqio.Feature, most: int | None) -> None:
        """Warns of labels that the vocabulary does not give back; raises ValueError for two that have the same tokens.

        Args:
          feature: of the targets.
          most: tokens of the targets, EOS included; None cuts nothing.
        """
        if not isinstance(self.format, Template):
            return
        of_tokens: dict[tuple[int, ...], str] = {}
        changed = []
        for label in self.format.choices:
            tokens = feature.vocabulary.encode(label)
            if feature.vocabulary.decode(tokens).split() != label.split():
                changed.append(label)
            key = tuple(tokens[: None if most is None else most - 1])
            if key in of_tokens:
                cut = "" if most is None or len(tokens) < most else f" in the {most} tokens of the targets"
                raise ValueError(
                    f"Task {self.task!r}: the labels {of_tokens[key]!r} and {label!r} have the same tokens{cut}, and "
                    "no answer tells them apart. Give them other texts, a vocabulary with their characters, or "
                    "longer targets in TASK_FEATURE_LENGTHS."
                )
            of_tokens[key] = label
        if changed and (self.task, *changed) not in _warned:
            _warned.add((self.task, *changed))
            logger.warning(
                "%s: the vocabulary does not give the labels %s back: no generated answer will be one of them.",
                *(self.task, ", ".join(map(repr, changed))),
            )

    # Streams call this where AutoGraph converts all Python.
    @tf.autograph.experimental.do_not_convert
    def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        assert self.output_features is not None
        cutter = _Cutter(self.task, self.output_features, self.sequence_length)
        names = [*dataset.element_spec]

        def make(number, *columns):
            rows = dict(zip(names, columns, strict=True))
            numbered = list(self._examples(number, rows))
            texts = {
                "inputs": [example.inputs for _, _, example in numbered],
                "targets": [example.targets for _, _, example in numbered],
            }
            tokens = [x for name in ("inputs", "targets") for x in cutter.encode(name, texts[name])]
            pretokenized = [np.array([t.encode() for t in texts[name]] or [], object) for name in ("inputs", "targets")]
            references = [json.dumps(x.reference, ensure_ascii=False).encode() for _, _, x in numbered]
            index = np.array([idx for _, idx, _ in numbered], np.int32).reshape(-1, 2)
            correct = np.array([bool(x.correct and x.correct[idx[1]]) for _, idx, x in numbered], bool)
            documents = rows.get("document", np.full((len(number), 3), -1, np.int64))
            of_row = np.array([row for row, _, _ in numbered], np.int64)
            return [*tokens, *pretokenized, np.array(references, object), index, correct, documents[of_row]]

        types = [tf.int32, tf.int64] * 2 + [tf.string] * 3 + [tf.int32, tf.bool, tf.int64]
        shapes = [[None, None], [None]] * 2 + [[None]] * 3 + [[None, 2], [None], [None, 3]]

        def map_batch(number, row):
            made = tf.numpy_function(make, [number, *(row[name] for name in names)], types, stateful=False)
            return tuple(tf.ensure_shape(x, shape) for x, shape in zip(made, shapes, strict=True))

        def to_features(inputs, inputs_length, targets, targets_length, *others):
            inputs_text, targets_text, reference, idx, is_correct, document = others
            features = {
                "inputs": inputs[:inputs_length],
                "targets": targets[:targets_length],
                "inputs_pretokenized": inputs_text,
                "targets_pretokenized": targets_text,
                "reference": reference,
                "document": document,
            }
            return features | ({"idx": idx, "is_correct": is_correct} if self.ranks else {})

        return dataset.enumerate().batch(_ROWS_PER_BATCH).map(map_batch).unbatch().map(to_features)

    def _examples(
        self, number: np.ndarray, rows: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[int, tuple[int, int], Example]]:
        """The number in the batch, `idx`, and example after example."""
        for i in range(len(number)):
            row = {name: _plain(values[i]) for name, values in rows.items() if name != "document"}
            try:
                examples = self.format(row)
            except (ValueError, KeyError, TypeError, IndexError) as error:
                where = (
                    f"row {int(rows['document'][i][2])} (the first is 0)" if "document" in rows else f"row {number[i]}"
                )
                raise ValueError(_bad_row(self.task, where, error)) from error
            if not self.ranks:
                yield from ((i, (int(number[i]), 0), example) for example in examples)
            # Several answers of a row are all in what is correct of the first.
            for choice, text in enumerate(examples[0].choices if self.ranks else ()):
                yield i, (int(number[i]), choice), dataclasses.replace(examples[0], targets=text)


def check_task(task: seqio.Task, split: str, lengths: Mapping[str, int] | None) -> None:
    """Checks the rows of a task whose preprocessor knows how; of others nothing.

    Raises:
      ValueError: see `Supervise.check_rows` and `RemoveDiacritics.check_rows`.
    """
    for step in task.preprocessors:
        if hasattr(step, "check_rows") and isinstance(task.source, ShardedSource):
            step.check_rows(task.source, split, task.output_features, lengths)


def _bad_row(task: str, where: str, error: Exception) -> str:
    reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
    return f"Task {task!r}, {where}: {reason}. Mend the row, or the task's labels and columns."


def _plain(value: Any) -> Any:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value


class _Cutter:
    """Tokenizes texts, and counts those that are longer than the model reads."""

    def __init__(self, task: str, features: Mapping[str, seqio.Feature], lengths: Mapping[str, int] | None):
        self._task = task
        self._features = features
        self._lengths = lengths or {}
        # By feature: texts, those that were cut, the longest, and how many were cut when it was last said.
        self._seen = {name: [0, 0, 0, 0] for name in features}

    def encode(self, name: str, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens with EOS, int32 `[texts, length]`, padded, and their number, int64 `[texts]`."""
        feature, most = self._features[name], self._lengths.get(name)
        flat, lengths = preprocessors.encode_batch(feature.vocabulary, [text.encode() for text in texts])
        tokens = [x.tolist() for x in np.split(flat, np.cumsum(lengths)[:-1])] if len(texts) else []
        if feature.add_eos:
            tokens = [[*x[: None if most is None else most - 1], feature.vocabulary.eos_id] for x in tokens]
            lengths = lengths + 1
        if most is not None:
            tokens = [x[:most] for x in tokens]
            self._count(name, lengths, most)
        kept = np.array([len(x) for x in tokens], np.int64)
        padded = np.zeros((len(tokens), max(kept, default=0)), np.int32)
        for i, x in enumerate(tokens):
            padded[i, : len(x)] = x
        return padded, kept

    def _count(self, name: str, lengths: np.ndarray, most: int) -> None:
        seen = self._seen[name]
        seen[0] += len(lengths)
        seen[1] += int(np.count_nonzero(lengths > most))
        seen[2] = max(seen[2], int(lengths.max(initial=0)))
        # The first, and whenever their number has doubled.
        if seen[1] and seen[1] >= 2 * seen[3]:
            seen[3] = seen[1]
            logger.warning(
                "%s: %d of the first %d examples have %s longer than %d tokens (the longest: %d) and are cut. Raise "
                "TASK_FEATURE_LENGTHS, or shorten them.",
                *(self._task, seen[1], seen[0], name, most, seen[2]),
            )
