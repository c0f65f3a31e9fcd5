"""What metrics compare: decoded answers and right ones, both as the vocabulary of the targets normalizes texts.

A decoded answer consists of normalized characters, so a right answer with others, such as the full-width `，`, which
T5's vocabularies read as `,`, could never be met. Hugging Face's scripts decode the right answers for the same reason.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from limba.tasks.supervised.row_formats import Format, Template
from limba.tasks.vocabularies import normalization

# How SentencePiece decodes the unknown token, which normalization would turn into two question marks.
_UNKNOWN = "\u2047"


@dataclasses.dataclass(frozen=True)
class ComparedAnswers:
    """The `postprocess_fn` of a supervised task.

    Attributes:
      format: of the rows.
      vocabulary: of the targets; None compares texts as they are.
    """

    format: Format
    vocabulary: Any = None

    def __call__(self, answer: str, example: Mapping[str, Any] | None = None, is_target: bool = False) -> Any:
        """The value that metrics take for a decoded answer, or for the target of an example with its `reference`."""
        if is_target and example is not None and (reference := json.loads(example["reference"])) is not None:
            return self._of_texts(reference)
        as_decoded = not is_target and _UNKNOWN in answer
        return self._format.prediction(answer if as_decoded else self._normalized(answer))

    @functools.cached_property
    def _format(self) -> Format:
        """That with labels as they are decoded, which is known once the vocabulary's file is read."""
        if not isinstance(self.format, Template) or self.format.labels is None:
            return self.format
        labels = self.format.labels
        pairs = labels.items() if isinstance(labels, Mapping) else zip(labels, labels, strict=True)
        labels = {value: " ".join(self._normalized(text).split()) for value, text in pairs}
        return dataclasses.replace(self.format, labels=labels)

    def _normalized(self, text: str) -> str:
        return normalization.normalized(self.vocabulary, text)

    def _of_texts(self, reference: Any) -> Any:
        if isinstance(reference, str):
            return self._normalized(reference)
        if isinstance(reference, list):
            return [self._of_texts(value) for value in reference]
        if isinstance(reference, Mapping):
            return {name: self._of_texts(value) for name, value in reference.items()}
        return reference
