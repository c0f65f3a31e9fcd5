"""Formats of rows with several answers, for encoders: some labels of which any may be right, or several numbers.

SupervisedDataset(MultiLabel("{text}", ["toxic", "insult"]))                      # a column of 0 and 1 for each
SupervisedDataset(MultiLabel("{text}", ["joy", "anger", "fear"], "emotions"))     # a column with a list
SupervisedDataset(Numbers("{text}", ["valence", "arousal"]))
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from limba.files import number_ranges
from limba.tasks.supervised.cell_texts import as_text, plain_text
from limba.tasks.supervised.postprocessors import string_to_float
from limba.tasks.supervised.row_formats import UNKNOWN, Example, Row, Template, number_of, record_of
from limba.tasks.vocabularies import MultiLabelVocabulary, NumberVocabulary

_YES_NO = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}


@dataclasses.dataclass(frozen=True)
class _SeveralAnswers:
    inputs: str | Sequence[str]
    names: Sequence[str]
    label_column: str = ""
    num_choices: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        _ = self._template.columns  # is checked

    @property
    def _template(self) -> Template:
        return Template(self.inputs, self.answer_columns[0])

    @property
    def answer_columns(self) -> tuple[str, ...]:
        """The columns with the answers."""
        return (self.label_column,) if self.label_column else tuple(self.names)

    @property
    def nested_columns(self) -> tuple[str, ...]:
        return (self.label_column,) if self.label_column else ()

    @property
    def columns(self) -> tuple[str, ...]:
        found = dict.fromkeys((*self._template.columns, *self.answer_columns))
        return tuple(name for name in found if name not in self.nested_columns)

    def without_prompt(self) -> Self:
        """As `Template.without_prompt`."""
        return dataclasses.replace(self, inputs=self._template.without_prompt().inputs)

    def has_text(self, row: Row) -> bool:
        """As `Template.has_text`."""
        return self._template.has_text(row)

    def _example(self, row: Row, targets: str) -> list[Example]:
        (example,) = self._template({**row, self.answer_columns[0]: ""})
        return [dataclasses.replace(example, targets=targets)]

    def _is_unknown(self, row: Row) -> bool:
        return any(isinstance(row[name], str) and row[name] == UNKNOWN for name in self.answer_columns)


@dataclasses.dataclass(frozen=True)
class MultiLabel(_SeveralAnswers):
    """Text with columns in braces, and labels of which any number is right.

    Args:
      inputs: as of `row_formats.Template`; `[SEP]` separates two texts.
      names: the labels.
      label_column: a column with the list of the right ones, as texts or as their numbers from 0; without it each label
        has a column of its name with 0 or 1.

    Raises:
      ValueError: if the template is none or has no column, and for labels that are no different texts, or have a tab.
    """

    def __post_init__(self) -> None:
        MultiLabelVocabulary(self.names)  # is checked
        super().__post_init__()
        if wrong := [name for name in self.names if name != plain_text(name)]:
            raise ValueError(
                f"The labels have {wrong[0]!r}; no label may begin or end with blanks, or have two: write "
                f"{plain_text(wrong[0])!r}."
            )

    def __call__(self, row: Row) -> list[Example]:
        if self._is_unknown(row):
            return self._example(row, UNKNOWN)
        right = self._listed(row) if self.label_column else {name for name in self.names if self._is_right(row, name)}
        return self._example(row, MultiLabelVocabulary(self.names).join(x for x in self.names if x in right))

    def _listed(self, row: Row) -> set[str]:
        listed = record_of(row[self.label_column])
        if isinstance(listed, str):
            listed = [listed] if listed.strip() else []
        if not isinstance(listed, list | tuple):
            raise ValueError(f"column {self.label_column!r} has {listed!r}, and needs a list of labels")
        return {self._label(value) for value in listed}

    def _label(self, value: Any) -> str:
        text = plain_text(as_text(value))
        if text in self.names:
            return text
        if (number := number_ranges.of_digits(text)) is not None and number < len(self.names):
            return self.names[number]
        known = ", ".join(map(repr, self.names))
        raise ValueError(f"column {self.label_column!r} has the label {value!r}; the known labels are {known}")

    def _is_right(self, row: Row, name: str) -> bool:
        text = as_text(row[name]).strip().lower()
        if text not in _YES_NO:
            raise ValueError(f"column {name!r} has {row[name]!r}; it needs 1 where the label is right, and else 0")
        return _YES_NO[text]

    def prediction(self, answer: str) -> list[int]:
        """0 or 1 for each label, in their order."""
        right = MultiLabelVocabulary(self.names).split(answer)
        return [int(name in right) for name in self.names]


@dataclasses.dataclass(frozen=True)
class Numbers(_SeveralAnswers):
    """Text with columns in braces, and several numbers.

    Args:
      inputs: as of `row_formats.Template`; `[SEP]` separates two texts.
      names: of the numbers.
      label_column: a column with a list of the numbers, in this order; without it each has a column of its name.

    Raises:
      ValueError: if the template is none or has no column, and for names that are no different texts.
    """

    def __post_init__(self) -> None:
        NumberVocabulary(self.names)  # is checked
        super().__post_init__()

    def __call__(self, row: Row) -> list[Example]:
        if self._is_unknown(row):
            return self._example(row, UNKNOWN)
        if self.label_column:
            listed = record_of(row[self.label_column])
            if not isinstance(listed, list | tuple) or len(listed) != len(self.names):
                raise ValueError(f"column {self.label_column!r} has {listed!r}, and needs {len(self.names)} numbers")
            row = {**row, **dict(zip(self.names, listed, strict=True))}
        return self._example(row, " ".join(str(number_of(row, name)) for name in self.names))

    def prediction(self, answer: str) -> list[float]:
        """The numbers, in their order; -1 for each where the answer has none."""
        numbers = answer.split()
        return [string_to_float(text) for text in numbers if len(numbers) == len(self.names)] or [-1.0] * len(
            self.names
        )
