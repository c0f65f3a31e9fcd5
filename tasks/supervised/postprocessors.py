"""Postprocessors of decoded answers, before they are scored, under the names of T5's `t5.data.postprocessors`.

SeqIO calls each with the decoded text and, as keyword arguments, the example and whether the text is its target.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any


def lower_text(string: str, **unused: Any) -> str:
    """Lower case."""
    return string.lower()


def string_to_float(string: str, default: float = -1.0, **unused: Any) -> float:
    """The finite number that a text is; `default` if it is none."""
    try:
        number = float(string)
    except ValueError:
        return default
    return number if math.isfinite(number) else default


def string_label_to_class_id(string_label: str, label_classes: Sequence[str], default: int = -1, **unused: Any) -> int:
    """The place of a label among the classes; `default` if it is none of them."""
    return list(label_classes).index(string_label) if string_label in label_classes else default


def qa(answer: str, example: Mapping[str, Any] | None = None, is_target: bool = False) -> str | list[str]:
    """For metrics with several answers: all of an example's `answers` as its target, the text as a prediction."""
    if not is_target or example is None:
        return answer
    return [text.decode() if isinstance(text, bytes) else str(text) for text in example["answers"]]


def rank_classification(
    score: Any, example: Mapping[str, Any] | None = None, is_target: bool = False
) -> float | tuple[Any, bool, float, int]:
    """Of a target `(idx, is_correct, weight, number of target tokens)`, as the metric of this name takes it."""
    if not is_target or example is None:
        return score
    weight = float(example["weight"]) if "weight" in example else 1.0
    return example["idx"], bool(example["is_correct"]), weight, len(example["targets"])
