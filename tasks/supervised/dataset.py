"""The record of a supervised data set: a row of the table, or one of a user's own."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from limba.tasks.metrics import text_metrics
from limba.tasks.supervised.row_formats import Format, Number, Template
from limba.tasks.supervised.several_answers import MultiLabel, Numbers


@dataclasses.dataclass(frozen=True)
class SupervisedDataset:
    """An entry of the table.

    Attributes:
      inputs: a template of the model's input, the prefix and the columns in braces: `"mood of: {text}"`; for an
        encoder with `[SEP]` between two texts, or as a tuple of one or two templates, in which `[SEP]` is a part of a
        text; or one of `supervised_formats`, and then neither `label_column` nor `labels`.
      label_column: the column with the answer.
      labels: the text of each value of that column, or the values, where they are texts; None where answers are free.
      unlabelled: the value of that column where the label is kept secret.
      metric_fns: of generated answers; None is `metrics.accuracy` and, with labels, what the most frequent label
        reaches and `metrics.class_scores`; of numbers Pearson's and Spearman's correlations;
        of several labels of a row `metrics.multi_label_scores`. With labels they get the
        numbers of labels, in the order of `labels`, and -1 for another answer.
      hub, config: the data set on the Hugging Face hub.
      splits: the hub's splits by the names that tasks see; None leaves them as they are.
      num_examples: rows of the training split, for the rates of mixtures.
    """

    inputs: str | Sequence[str] | Format
    label_column: str = ""
    labels: Mapping[Any, str] | Sequence[str] | None = None
    unlabelled: Any = None
    metric_fns: Sequence[text_metrics.MetricFn] | None = None
    hub: str | None = None
    config: str | None = None
    splits: Mapping[str, str] | None = None
    num_examples: int | None = None

    def __post_init__(self) -> None:
        if self._has_template and not self.label_column:
            raise ValueError(f"The data set with the inputs {self.inputs!r} needs label_column, where the answers are.")
        if not self._has_template and not callable(self.inputs):
            raise ValueError(f"SupervisedDataset.inputs is {self.inputs!r}; give a template, such as '{{text}}'.")
        if not isinstance(self.label_column, str):
            raise ValueError(f"SupervisedDataset.label_column is {self.label_column!r}; give the name of a column.")
        if self.metric_fns is not None and (
            not isinstance(self.metric_fns, list | tuple) or not all(map(callable, self.metric_fns))
        ):
            raise ValueError(
                f"SupervisedDataset.metric_fns is {self.metric_fns!r}; give a list of functions, such as "
                "[metrics.accuracy]."
            )
        if not self._has_template and (self.label_column or self.labels is not None):
            raise ValueError(f"The format {self.inputs} has its columns and labels; leave label_column and labels out.")
        _ = self.format  # checks the template

    @property
    def _has_template(self) -> bool:
        inputs = self.inputs
        return isinstance(inputs, str) or (isinstance(inputs, list | tuple) and all(isinstance(x, str) for x in inputs))

    @property
    def format(self) -> Format:
        if callable(self.inputs):
            return self.inputs
        return Template(self.inputs, self.label_column, self.labels, self.unlabelled)

    @property
    def metrics(self) -> list[text_metrics.MetricFn]:
        if self.metric_fns is not None:
            return list(self.metric_fns)
        if isinstance(self.format, Number):
            return [text_metrics.pearson_corrcoef, text_metrics.spearman_corrcoef]
        if isinstance(self.format, Numbers):
            return [text_metrics.correlations(self.format.names)]
        if isinstance(self.format, MultiLabel):
            return [text_metrics.multi_label_scores(self.format.names)]
        of_labels: list[text_metrics.MetricFn] = [text_metrics.majority_accuracy] if self.format.num_choices else []
        if isinstance(self.format, Template) and self.format.choices:
            of_labels.append(text_metrics.class_scores(self.format.choices))
        return [text_metrics.accuracy, *of_labels]
