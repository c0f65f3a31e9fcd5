"""Data sets of words with labels: their columns, labels and metrics, and which pieces of a word have its label."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from limba.tasks.metrics import tagging_metrics
from limba.tasks.metrics.text_metrics import MetricFn
from limba.tasks.supervised.cell_texts import plain_text
from limba.tasks.supervised.row_formats import record_of
from limba.tasks.vocabularies import LabelVocabulary


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
