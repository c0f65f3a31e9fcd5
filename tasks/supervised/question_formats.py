"""Questions about a context, as run_seq2seq_qa.py of Hugging Face's examples gives them to a T5."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from limba.tasks.supervised.cell_texts import as_text
from limba.tasks.supervised.row_formats import Example, Row


@dataclasses.dataclass(frozen=True)
class Questions:
    """`question: … context: …`; the first answer is learned, all of them are right.

    The texts stay as they are; `row_formats.Squad` has T5's own, with blanks around punctuation.

    Args:
      question, context: the columns with these texts.
      answers: the column with the answers: SQuAD's record with `text`, a list of texts or of such records, or a single
        text. Without an answer the target is empty.
      prefix: before each input.
    """

    question: str = "question"
    context: str = "context"
    answers: str = "answers"
    prefix: str = ""
    num_choices: ClassVar[int | None] = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.question, self.context)

    @property
    def nested_columns(self) -> tuple[str, ...]:
        return (self.answers,)

    def __call__(self, row: Row) -> list[Example]:
        answers = self._answers(row[self.answers])
        texts = [as_text(row[column]).lstrip() for column in self.columns]
        inputs = f"{self.prefix}question: {texts[0]} context: {texts[1]}"
        return [Example(inputs, answers[0] if answers else "", reference=answers or [""])]

    def _answers(self, value: Any) -> list[str]:
        found = value
        if isinstance(value, str) and value[:1] in ("[", "{"):  # As JSON, or an answer that begins so.
            try:
                found = json.loads(value)
            except ValueError as error:
                if value[0] == "{":
                    raise ValueError(f"column {self.answers!r} has {value[:60]!r}, which is not JSON") from error
        if isinstance(found, Mapping):
            if "text" not in found:
                raise ValueError(f"column {self.answers!r} has {value[:60]!r}, which has no 'text'")
            found = found["text"]
        if found is None or found == "":
            return []
        answers = [x for x in (found if isinstance(found, list) else [found]) if x is not None]
        answers = [x["text"] if isinstance(x, Mapping) and "text" in x else x for x in answers]
        return [str(answer) for answer in answers] if all(map(_is_answer, answers)) else [str(value)]

    def has_text(self, row: Row) -> bool:
        """Whether neither the question nor the context is blank."""
        return all(as_text(row[column]).strip() for column in self.columns)

    def prediction(self, answer: str) -> str:
        return answer


def _is_answer(value: Any) -> bool:
    return isinstance(value, str | int | float)
