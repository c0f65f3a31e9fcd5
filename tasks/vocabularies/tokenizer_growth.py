"""How much longer a tokenizer.json makes a text: a few steps that each write ten letters for one fill any memory."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

# Of characters of a text, and of added tokens; real files write three for one, and tokens of a few dozen characters.
_MOST_GROWTH, _MOST_CHARACTERS = 1000, 10_000
# That a template puts around a text.
_MOST_SPECIAL = 1000


def check(content: Mapping[str, Any], file: str) -> None:
    """Raises ValueError for steps, added tokens or a template that make much of a short text."""
    for place in ("normalizer", "pre_tokenizer", "decoder"):
        growth = 1.0
        for step in parts(content.get(place)):
            growth *= _growth(step)
            if growth > _MOST_GROWTH:
                raise ValueError(
                    f"{file}: the {place} makes texts more than {_MOST_GROWTH:,} times as long; take another tokenizer."
                )
    for token in _list(content.get("added_tokens")):
        if isinstance(token, Mapping) and len(str(token.get("content", ""))) > _MOST_CHARACTERS:
            raise ValueError(f"{file} has an added token of more than {_MOST_CHARACTERS:,} characters.")
    for step in parts(content.get("post_processor")):
        if (number := _special(step)) > _MOST_SPECIAL:
            raise ValueError(f"{file}: its template puts {number:,} tokens around a text; at most {_MOST_SPECIAL:,}.")


def parts(step: Any) -> Iterator[Mapping[str, Any]]:
    """The steps of a nested sequence."""
    if not isinstance(step, Mapping):
        return
    if step.get("type") != "Sequence":
        yield step
        return
    for name in ("normalizers", "pretokenizers", "processors", "decoders"):
        for inner in _list(step.get(name)):
            yield from parts(inner)


def _growth(step: Mapping[str, Any]) -> float:
    """Characters for one of the text."""
    if step.get("type") == "Prepend":
        return 1.0 + len(str(step.get("prepend", "")))
    if step.get("type") != "Replace":
        return 1.0
    pattern = step.get("pattern")
    pattern = pattern if isinstance(pattern, Mapping) else {}
    written = len(str(step.get("content", "")))
    found = str(pattern.get("String", ""))
    if found or not _finds_nothing(str(pattern.get("Regex", ""))):
        return max(1.0, written / max(1, len(found)))
    return 1.0 + written  # Between any two characters.


def _finds_nothing(expression: str) -> bool:
    """Whether an expression may be found in an empty text; also where Python does not know it."""
    try:
        return re.search(expression, "") is not None
    except re.error:
        return True


def _special(step: Mapping[str, Any]) -> int:
    """The most tokens of one template."""
    tokens = step.get("special_tokens")
    ids = {name: len(_list(x.get("ids"))) for name, x in tokens.items()} if isinstance(tokens, Mapping) else {}
    sizes = [0]
    for template in (step.get("single"), step.get("pair")):
        pieces = [piece.get("SpecialToken") for piece in _list(template) if isinstance(piece, Mapping)]
        sizes.append(sum(ids.get(str(piece.get("id")), 1) for piece in pieces if isinstance(piece, Mapping)))
    return max(sizes)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
