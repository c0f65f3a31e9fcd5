"""Templates: text with the names of columns in braces, whatever is in these names; a brace that is meant is doubled."""

import re
from collections.abc import Iterator

_PARTS = re.compile(r"([^{}]+|\{\{|\}\})|\{([^{}]*)\}|(.)", re.DOTALL)


def parts(template: str) -> Iterator[tuple[str, str | None]]:
    """Pairs of a literal text and None, or of "" and the name of a column. Raises ValueError for a lone brace."""
    for literal, name, lone in _PARTS.findall(template):
        if lone:
            raise ValueError(f"a single {lone!r}")
        yield (literal[:1], None) if literal in ("{{", "}}") else (literal, None if literal else name)


def split(template: str, separator: str) -> list[str]:
    """The templates between separators, without the blanks beside these; the name of a column may have the separator.

    Raises ValueError for a lone brace.
    """
    found = [""]
    for literal, name in parts(template):
        first, *others = literal.replace("{", "{{").replace("}", "}}").split(separator)
        found[-1] += first if name is None else f"{{{name}}}"
        for other in others:
            found = [*found[:-1], found[-1].rstrip(), other.lstrip()]
    return found
