"""How a row of a data set becomes a text to answer and its answer, in the formats that T5's checkpoints know.

A format is called with a row, `{column: value}`, and returns `Example`s. The texts of benchmarks are those of T5
(arXiv:1910.10683, appendix D, and `t5.data.preprocessors`), to the blank.
"""

import dataclasses
import functools
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from limba.files import number_ranges
from limba.tasks.supervised.cell_texts import as_text, pad_punctuation, plain_text
from limba.tasks.supervised.postprocessors import string_to_float

Row = Mapping[str, Any]

# T5's answer where the labels of a split are kept secret, or are not there.
UNKNOWN = "<unk>"
# Between two texts that an encoder is to compare; whatever its vocabulary calls the token.
SEPARATOR = "[SEP]"
_FALSE_TRUE = {0: "False", 1: "True"}
LANGUAGES = {"de": "German", "en": "English", "fr": "French", "ro": "Romanian"}


@dataclasses.dataclass(frozen=True)
class Example:
    """A text and its answer.

    Attributes:
      inputs: of the model.
      targets: the right answer.
      choices: all possible answers, where that is a closed set.
      correct: for each choice, whether it is right.
      reference: the value that metrics compare a prediction with, as JSON has it; None is `targets`.
      texts: of the inputs, where there are several: an encoder reads two as a pair.
    """

    inputs: str
    targets: str
    choices: tuple[str, ...] = ()
    correct: tuple[bool, ...] = ()
    reference: Any = None
    texts: tuple[str, ...] = ()


class Format(Protocol):
    """Makes examples of a row.

    Attributes:
      columns: the columns that it needs.
      nested_columns: those that it needs, which have lists or records.
      num_choices: how many answers there are; None if it is not a closed set, 0 if their number differs by row.
    """

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def nested_columns(self) -> tuple[str, ...]: ...

    @property
    def num_choices(self) -> int | None: ...

    def __call__(self, row: Row) -> Sequence[Example]: ...

    def prediction(self, answer: str) -> Any:
        """The value that metrics take in place of a decoded answer."""
        ...


# ------------------------------------------------------- one template -------------------------------------------------


def prompt(name: str, *columns: str) -> str:
    """T5's template: `prompt("mnli", "premise")` is `"mnli premise: {premise}"`."""
    return " ".join([name, *(f"{column}: {{{column}}}" for column in columns)])


@dataclasses.dataclass(frozen=True)
class Template:
    """Text with columns in braces, and the column with the answer.

    Args:
      inputs: such as `"mnli hypothesis: {hypothesis} premise: {premise}"`; a brace that is meant is doubled. For an
        encoder `[SEP]` stands between two texts, `"{premise} [SEP] {hypothesis}"`; in a tuple of one template it is
        part of a text.
      label_column: the column with the answer.
      labels: the text of each value of the label column; a sequence, whose values stand for themselves; None where the
        column has any text, which is then the answer.
      unlabelled: the value of the label column where the label is kept secret, as in GLUE's test sets.

    Raises:
      ValueError: if the template is none, or has no column.
    """

    inputs: str | Sequence[str]
    label_column: str
    labels: Mapping[Any, str] | Sequence[str] | None = None
    unlabelled: Any = None
    nested_columns: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not self._fields:
            raise ValueError(f"The inputs {self.inputs!r} have no column in braces, such as '{{text}}'.")
        if self.labels is None:
            return
        if not isinstance(self.labels, list | tuple | Mapping) or len(self.labels) < 2:
            raise ValueError(f"labels are {self.labels!r}; give at least two, as a list or {{value: text}}.")
        texts = list(self.labels.values() if isinstance(self.labels, Mapping) else self.labels)
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise ValueError(
                f"labels are {self.labels!r}, and the answer {wrong[0]!r} is not text; give {{value: text}}, such as "
                "{0: 'negative', 1: 'positive'}."
            )
        if wrong := [text for text in texts if text != plain_text(text)]:
            raise ValueError(
                f"labels have the text {wrong[0]!r}; no text may begin or end with blanks, or have two. Write "
                f"{plain_text(wrong[0])!r}: rows with such blanks are read as this."
            )
        if len({*texts}) < 2:
            raise ValueError(f"labels are {self.labels!r}, which all have the text {texts[0]!r}; give different texts.")

    @functools.cached_property
    def _templates(self) -> list[str]:
        """Of the texts of a row."""
        return _split_template(self.inputs, SEPARATOR) if isinstance(self.inputs, str) else list(self.inputs)

    @property
    def whole(self) -> str:
        """The template of the inputs as one text."""
        return self.inputs if isinstance(self.inputs, str) else f" {SEPARATOR} ".join(self.inputs)

    @property
    def _fields(self) -> tuple[str, ...]:
        try:
            fields = [name for _, name in _template_parts(self.whole) if name is not None]
        except ValueError as error:
            raise ValueError(
                f"The inputs {self.inputs!r} are not a template: {error}. Double braces that are meant, and rename a "
                "column with a brace in its name."
            ) from error
        if strange := [name for name in fields if not name.strip()]:
            raise ValueError(f"The inputs {self.inputs!r} have {strange}; braces hold the name of a column only.")
        return tuple(dict.fromkeys(fields))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._fields, self.label_column)))

    @property
    def _texts(self) -> dict[str, str]:
        """The label's text by its value, written as a text: files of text have no numbers."""
        assert self.labels is not None
        pairs = self.labels.items() if isinstance(self.labels, Mapping) else zip(self.labels, self.labels, strict=True)
        return {as_text(value): text for value, text in pairs}

    @property
    def numbered_labels(self) -> dict[int, str]:
        """The labels of those values that are numbers."""
        numbers = ((number_ranges.of_digits(value), text) for value, text in self._texts.items())
        return {number: text for number, text in numbers if number is not None}

    def without_prompt(self) -> "Template":
        """Of the same columns, in their order, with nothing but a separator between them: for encoders."""
        fields = [f"{{{name}}}" for name in self._fields]
        return dataclasses.replace(self, inputs=f" {SEPARATOR} ".join(fields))

    @property
    def choices(self) -> tuple[str, ...]:
        return () if self.labels is None else tuple(dict.fromkeys(self._texts.values()))

    @property
    def num_choices(self) -> int | None:
        return len(self.choices) or None

    def __call__(self, row: Row) -> list[Example]:
        inputs = _rendered(self.whole, row)
        texts = tuple(_rendered(template, row) for template in self._templates) if len(self._templates) > 1 else ()
        label = as_text(row[self.label_column])
        if self.labels is None:
            return [Example(inputs, label, texts=texts)]
        if label not in self._texts:  # A label that differs from another by blanks alone is meant as that one.
            label = plain_text(label)
        if label in (UNKNOWN, self.unlabelled if self.unlabelled is None else as_text(self.unlabelled)):
            return [Example(inputs, UNKNOWN, self.choices, (False,) * len(self.choices), texts=texts)]
        if label not in self._texts:
            known = ", ".join(map(repr, self._texts))
            value = f"the label {label!r}" if label else "no label"
            composed = unicodedata.normalize("NFC", label)
            is_there = any(unicodedata.normalize("NFC", text) == composed for text in self._texts)
            form = (
                ". One looks the same and has other code points: write both in Unicode's form NFC" if is_there else ""
            )
            raise ValueError(f"column {self.label_column!r} has {value}; the known labels are {known}{form}")
        target = self._texts[label]
        correct = tuple(choice == target for choice in self.choices)
        return [Example(inputs, target, self.choices, correct, texts=texts)]

    def spaced_label(self, row: Row) -> str | None:
        """The label of a row, if it is a known one but for its blanks."""
        label = as_text(row[self.label_column])
        is_spaced = label != plain_text(label) and self.labels is not None and label not in self._texts
        return label if is_spaced and plain_text(label) in self._texts else None

    def has_text(self, row: Row) -> bool:
        """Whether a column of the inputs, in a row, is not blank."""
        return any(as_text(row[name]).strip() for name in self._fields)

    def prediction(self, answer: str) -> Any:
        """The number of the label, -1 if it is none; without labels the text."""
        if self.labels is None:
            return answer
        answer = plain_text(answer)
        return self.choices.index(answer) if answer in self.choices else -1


def _rendered(template: str, row: Row) -> str:
    parts = _template_parts(template)
    return "".join(literal + ("" if name is None else as_text(row[name])) for literal, name in parts)


# Text with the names of columns in braces, whatever is in these names; a brace that is meant is doubled.
_TEMPLATE_PARTS = re.compile(r"([^{}]+|\{\{|\}\})|\{([^{}]*)\}|(.)", re.DOTALL)


def _template_parts(template: str) -> Iterator[tuple[str, str | None]]:
    """Pairs of a literal text and None, or of "" and the name of a column. Raises ValueError for a lone brace."""
    for literal, name, lone in _TEMPLATE_PARTS.findall(template):
        if lone:
            raise ValueError(f"a single {lone!r}")
        yield (literal[:1], None) if literal in ("{{", "}}") else (literal, None if literal else name)


def _split_template(template: str, separator: str) -> list[str]:
    """The templates between separators, without the blanks beside these; the name of a column may have the separator.

    Raises ValueError for a lone brace.
    """
    found = [""]
    for literal, name in _template_parts(template):
        first, *others = literal.replace("{", "{{").replace("}", "}}").split(separator)
        found[-1] += first if name is None else f"{{{name}}}"
        for other in others:
            found = [*found[:-1], found[-1].rstrip(), other.lstrip()]
    return found


# ------------------------------------------------------- one number --------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Number:
    """Text with columns in braces, and a number: for encoders, which give numbers, not texts of them.

    Args:
      inputs, label_column: as of `Template`; `[SEP]` separates two texts.
      unlabelled: the value of the label column where the number is kept secret.

    Raises:
      ValueError: if the template is none, or has no column.
    """

    inputs: str | Sequence[str]
    label_column: str
    unlabelled: float | None = None
    nested_columns: ClassVar[tuple[str, ...]] = ()
    num_choices: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        _ = self._template  # is checked

    @property
    def _template(self) -> Template:
        return Template(self.inputs, self.label_column)

    @property
    def columns(self) -> tuple[str, ...]:
        return self._template.columns

    def __call__(self, row: Row) -> list[Example]:
        (example,) = self._template(row)
        if row[self.label_column] == UNKNOWN:
            return [dataclasses.replace(example, reference=0.0)]
        number = number_of(row, self.label_column)
        if self.unlabelled is not None and number == np.float32(self.unlabelled):
            return [dataclasses.replace(example, targets=UNKNOWN, reference=float(self.unlabelled))]
        return [dataclasses.replace(example, targets=str(number))]

    def without_prompt(self) -> "Number":
        """As `Template.without_prompt`."""
        return dataclasses.replace(self, inputs=self._template.without_prompt().inputs)

    def prediction(self, answer: str) -> float:
        return string_to_float(answer)


def number_of(row: Row, column: str) -> np.float32:
    try:
        number = np.float32(row[column])
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {column!r} has {row[column]!r}, which is not a number") from error
    if not np.isfinite(number):
        raise ValueError(f"column {column!r} has {row[column]!r}, which is not a number")
    return number


# ------------------------------------------------------ GLUE, SuperGLUE ----------------------------------------------


@dataclasses.dataclass(frozen=True)
class Similarity:
    """STS-B: a number from 0 to 5 as a text, rounded to the nearest fifth.

    A number that cannot be read from an answer counts as -1, as in T5.
    """

    inputs: str = prompt("stsb", "sentence1", "sentence2")
    label_column: str = "label"
    nested_columns: tuple[str, ...] = ()
    num_choices: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return Template(self.inputs, self.label_column).columns

    def __call__(self, row: Row) -> list[Example]:
        (example,) = Template(self.inputs, self.label_column)(row)
        value = number_of(row, self.label_column)
        if value == -1:  # the test set
            return [dataclasses.replace(example, targets=UNKNOWN, reference=-1.0)]
        return [dataclasses.replace(example, targets=f"{np.round(value * 5) / 5:.1f}")]

    @property
    def as_number(self) -> Number:
        """The same for encoders, which need no rounding."""
        return Number(self.inputs, self.label_column, -1.0)

    def prediction(self, answer: str) -> float:
        return string_to_float(answer)


@dataclasses.dataclass(frozen=True)
class MultiRc:
    """SuperGLUE's MultiRC: whether an answer to a question about a paragraph is right. Markup is taken out.

    Metrics get `{"value": class, "group": question}`.
    """

    columns: tuple[str, ...] = ("question", "answer", "paragraph", "label")
    nested_columns: tuple[str, ...] = ("idx",)
    num_choices: int | None = 2
    _template: ClassVar = Template(prompt("multirc", "question", "answer", "paragraph"), "label", _FALSE_TRUE, -1)

    def __call__(self, row: Row) -> list[Example]:
        (example,) = self._template(row)
        inputs = re.sub("</?b>", "", example.inputs.replace("<br>", " "))
        reference = {"value": self._template.prediction(example.targets), "group": record_of(row["idx"])["question"]}
        return [dataclasses.replace(example, inputs=inputs, reference=reference)]

    def prediction(self, answer: str) -> dict[str, Any]:
        return {"value": self._template.prediction(answer)}


@dataclasses.dataclass(frozen=True)
class Record:
    """SuperGLUE's ReCoRD: which entity a placeholder stands for. One example for each right answer.

    Metrics get `{"value": right answers, "group": passage and query}`, and take one example of each group.
    """

    columns: tuple[str, ...] = ("passage", "query")
    nested_columns: tuple[str, ...] = ("entities", "answers", "idx")
    num_choices: int | None = 0

    def __call__(self, row: Row) -> list[Example]:
        passage = re.sub("(\\.|\\?|!|\"|')\n@highlight\n", r"\1 ", row["passage"]).replace("\n@highlight\n", ". ")
        entities, answers = record_of(row["entities"]), record_of(row["answers"])
        index = record_of(row["idx"])
        inputs = f"record query: {row['query']} entities: {', '.join(entities)} passage: {passage}"
        correct = tuple(entity in answers for entity in entities)
        reference = {"value": answers, "group": f"{index['passage']}/{index['query']}"}
        return [Example(inputs, answer, tuple(entities), correct, reference) for answer in answers or [UNKNOWN]]

    def prediction(self, answer: str) -> dict[str, Any]:
        return {"value": answer}


@dataclasses.dataclass(frozen=True)
class Winograd:
    """SuperGLUE's WSC: whether a pronoun (between `#`) means a noun (between `*`)."""

    columns: tuple[str, ...] = ("text", "span1_text", "span1_index", "span2_text", "span2_index", "label")
    nested_columns: tuple[str, ...] = ()
    num_choices: int | None = 2
    _template: ClassVar = Template("wsc text: {text}", "label", _FALSE_TRUE, -1)

    def __call__(self, row: Row) -> list[Example]:
        first, second = int(row["span1_index"]), int(row["span2_index"])
        text = _mark_word(row["text"], row["span1_text"], first, "*")
        # The two marks are words now.
        text = _mark_word(text, row["span2_text"], second + (2 if first < second else 0), "#")
        return self._template({"text": text, "label": row["label"]})

    def prediction(self, answer: str) -> int:
        return self._template.prediction(answer)


def _mark_word(text: str, span: str, index: int, mark: str) -> str:
    return re.sub(rf"^((?:\S+\s){{{index}}})({re.escape(span)})", rf"\1{mark} \2 {mark}", text)


# -------------------------------------------- questions, translations ------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Squad:
    """SQuAD: the first answer is learned, all of them are right. Punctuation stands between blanks, as T5 has it.

    Args:
      answers: the column with the answers: a list, or SQuAD's record with `text`, or a single text.
    """

    answers: str = "answers"
    num_choices: int | None = None
    columns: ClassVar[tuple[str, ...]] = ("question", "context")
    examples_version: ClassVar[int] = 2  # 1 put blanks into words with letters that are not ASCII

    @property
    def nested_columns(self) -> tuple[str, ...]:
        return (self.answers,)

    def __call__(self, row: Row) -> list[Example]:
        answers = record_of(row[self.answers]) or []
        if isinstance(answers, Mapping):
            answers = answers["text"]
        answers = [pad_punctuation(text) for text in ([answers] if isinstance(answers, str) else answers)]
        parts = ["question:", pad_punctuation(row["question"]), "context:", pad_punctuation(row["context"])]
        inputs = re.sub(r"\s+", " ", " ".join(parts))
        # SQuAD 2 has questions without an answer.
        return [Example(inputs, answers[0] if answers else "", reference=answers or [""])]

    def prediction(self, answer: str) -> str:
        return answer


@dataclasses.dataclass(frozen=True)
class Translation:
    """A column `translation` of texts by language, as WMT's data sets have it: from `source` to `target`.

    Args:
      prefix: before each input; None is T5's, "translate English to German: ".

    Raises:
      ValueError: without a prefix, for a language whose English name is not known here.
    """

    source: str
    target: str
    prefix: str | None = None
    columns: tuple[str, ...] = ()
    nested_columns: tuple[str, ...] = ("translation",)
    num_choices: int | None = None

    def __post_init__(self) -> None:
        for language in (self.source, self.target) if self.prefix is None else ():
            if language not in LANGUAGES:
                raise ValueError(
                    f"The name of the language {language!r} is not known, only those of {', '.join(LANGUAGES)}; with "
                    "a column for each language use inputs='translate English to Klingon: {en}'."
                )

    def __call__(self, row: Row) -> list[Example]:
        raw = record_of(row["translation"])
        texts = raw if isinstance(raw, Mapping) else {}
        if wrong := [x for x in (self.source, self.target) if isinstance(texts.get(x, []), list | Mapping)]:
            raise ValueError(f"column 'translation' has no text for {wrong[0]!r}, only {raw!s:.80}")
        prefix = self.prefix
        if prefix is None:
            prefix = f"translate {LANGUAGES[self.source]} to {LANGUAGES[self.target]}: "
        return [Example(prefix + as_text(texts[self.source]), as_text(texts[self.target]))]

    def has_text(self, row: Row) -> bool:
        return bool(as_text(record_of(row["translation"])[self.source]).strip())

    def prediction(self, answer: str) -> str:
        return answer


def record_of(value: Any) -> Any:
    """A list or record, also if it came as JSON, as `tasks.sources.corpora` reads it; a text that is no JSON is one."""
    try:
        return json.loads(value) if isinstance(value, str) and value[:1] in ("[", "{", '"') else value
    except json.JSONDecodeError:
        return value
