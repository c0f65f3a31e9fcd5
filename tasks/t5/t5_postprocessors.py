"""Postprocessors of SuperGLUE's answers, under the names of `t5.data.postprocessors`; the others are in
`tasks.supervised.postprocessors`.
"""

from collections.abc import Mapping
from typing import Any

from limba.tasks.supervised import postprocessors

# Words that `wsc_simple` does not compare.
_DETERMINERS = {
    *("a", "an", "few", "her", "his", "each", "every", "many", "much", "my", "our"),
    *("some", "that", "the", "their", "these", "this", "those", "which", "whose", "your"),
}


def multirc(string_label: str, example: Mapping[str, Any] | None = None, is_target: bool = False) -> dict[str, Any]:
    """0 for "False", 1 for "True", else -1, as `value`; of targets also the question, as `group`."""
    made: dict[str, Any] = {"value": postprocessors.string_label_to_class_id(string_label, ("False", "True"))}
    if is_target:
        assert example is not None
        made["group"] = example["idx/question"]
    return made


def record(answer: str, example: Mapping[str, Any] | None = None, is_target: bool = False) -> dict[str, Any]:
    """The answer as `value`; of targets all answers, and the query, as `group`."""
    if not is_target:
        return {"value": answer}
    assert example is not None
    return {
        "value": postprocessors.qa(answer, example, is_target=True),
        "group": (int(example["idx/passage"]), int(example["idx/query"])),
    }


def wsc_simple(prediction: str, example: Mapping[str, Any] | None = None, is_target: bool = False) -> int:
    """Whether the noun of the example was predicted: 1 or 0, and -1 for an empty prediction; of targets the label.

    Capital letters and determiners do not count, and one of the two may have words that the other lacks.
    """
    assert example is not None
    if is_target:
        return example["label"]
    words = _words(prediction)
    if not words:
        return -1
    noun = example["targets_pretokenized"]
    nouns = _words(noun.decode() if isinstance(noun, bytes) else noun)
    # "Bob" is not "Bob's hat".
    if any("'" in word for word in words) != any("'" in word for word in nouns):
        return 0
    return int(words <= nouns or nouns <= words)


def _words(text: str) -> set[str]:
    return set(text.strip().lower().split(" ")) - _DETERMINERS - {""}
