"""Import lines of gin files whose modules no other line names: those that register tasks, and leftovers."""

import re
from collections.abc import Iterable

_IMPORT = re.compile(r"(?:from [\w.]+ )?import ([\w.]+)(?: as (\w+))?")


def without(text: str) -> str:
    """The text of a gin file without such lines."""
    lines = text.splitlines()
    others = [line for line in lines if not _IMPORT.match(line)]
    kept = [line for line in lines if not (found := _IMPORT.match(line)) or _is_used(found, others)]
    return "\n".join(kept) + "\n"


def _is_used(statement: re.Match[str], others: Iterable[str]) -> bool:
    name = re.compile(rf"\b{re.escape(statement[2] or statement[1])}\.")
    return statement[1] == "dynamic_registration" or any(name.search(line) for line in others)
