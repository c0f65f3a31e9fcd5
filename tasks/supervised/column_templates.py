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
