"""Markdown of model cards: tables and texts of users, in which nothing is markup by mistake."""

import html
import re
from collections.abc import Iterator, Sequence


def table(rows: Sequence[tuple[str, ...]] | Iterator[tuple[str, ...]], header: tuple[str, ...] = ("", "")) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(text: str) -> str:
    """Text in which nothing is markup."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~$-])", r"\\\1", html.escape(" ".join(str(text).split()), quote=False))


def cell(text: str) -> str:
    """A text in a line or a table that stays readable: no markup of HTML, no link or code, no other cell."""
    return re.sub(r"([\\`\[\]|])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def code(text: str) -> str:
    """Text between backticks, more of them than it has itself, in a table too."""
    text = " ".join(str(text).split())
    fence = "`" * (1 + _longest_run(text))
    padding = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{padding}{text}{padding}{fence}".replace("|", r"\|")


def python_block(text: str) -> str:
    """A program between fences that are longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + _longest_run(text))
    return f"{fence}python\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
