"""The preprocessors of tasks: steps from rows to rows."""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from limba.addons import table
from limba.data.lint_findings import Finding
from limba.tasks.registry.rows import ColumnType, Rows


class Step(abc.ABC):
    """A preprocessor of a task: a frozen dataclass that makes rows of rows, many at a time.

    SeqIO calls it with a `tf.data.Dataset`, like any preprocessor of its own.

    Attributes:
      output_features, sequence_length: fields with the default None; `bind`, or SeqIO, sets them before anything else
        is used.
      is_random: whether the function takes a seed.
      labels_tokens: whether targets have a label for each token of the inputs.
    """

    output_features: Mapping[str, Any] | None
    sequence_length: Mapping[str, int] | None
    is_random: ClassVar[bool] = False
    labels_tokens: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def rows_per_group(self) -> int:
        """Rows that are given together."""

    @abc.abstractmethod
    def columns(self) -> Mapping[str, ColumnType]:
        """The columns of the rows that are made."""

    @abc.abstractmethod
    def rows_function(self) -> Callable[[Rows, int], Rows]:
        """A NumPy function that makes rows of rows and a seed; `Rows.make` keeps where they come from.

        Raises:
          ValueError, FileNotFoundError: if features or lengths do not allow the step.
        """

    def find_missing_letters(self, vocabulary: Any) -> Iterator[Finding] | None:
        """For `limba lint`: letters that the step writes and the vocabulary lacks; None if it knows of no letters."""
        del vocabulary
        return None

    def __call__(self, dataset: Any) -> Any:
        """A `tf.data.Dataset` of the rows that are made."""
        return table.part("seqio", "A tf.data.Dataset").apply(self, dataset)


def bind(step: Step, output_features: Mapping[str, Any], sequence_length: Mapping[str, int] | None) -> Any:
    """A step with the features and lengths of its task."""
    return dataclasses.replace(step, output_features=output_features, sequence_length=sequence_length)  # type: ignore[type-var]
