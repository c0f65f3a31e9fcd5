"""A table of runs for a terminal, and the same as JSON and as curves."""

import dataclasses
import unicodedata
from collections.abc import Sequence

from limba.addons.pages.run_state import RunState
from limba.files import json_text
from limba.reports import results_table, text_width

_HEAD = ("run", "step", "loss", "validation", "of text", "tokens/s", "age", "state")
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def table(runs: Sequence[RunState], columns: int | None = None) -> str:
    """Lines of text, cut at the width of a terminal where `columns` is given."""
    cells = [
        (
            printable(run.folder),
            _steps(run),
            *(number(x, ".4f") for x in (run.loss, run.validation_loss, run.validation_text_loss)),
            number(run.tokens_per_second, ",.0f"),
            "" if run.age_seconds is None else age(run.age_seconds),
        )
        for run in runs
    ]
    lines = results_table.aligned_behind_names([_HEAD[:-1], *cells])
    width = max(map(text_width.width, lines))
    states = [_HEAD[-1], *(_state(run) for run in runs)]
    whole = [f"{text_width.ljust(line, width)}  {state}" for line, state in zip(lines, states, strict=True)]
    return "\n".join(whole if columns is None else [cut(line, columns) for line in whole])


def as_json(runs: Sequence[RunState]) -> str:
    """A list of objects; null for what is not known."""
    return json_text.dumps([dataclasses.asdict(run) for run in runs], indent=2, ensure_ascii=False)


def age(seconds: float) -> str:
    """`3 min`, `2 d`: in the largest unit that has at least two, or in seconds."""
    unit, size = next((unit for unit in _UNITS if seconds >= 2 * unit[1]), _UNITS[-1])
    return f"{seconds // size:.0f} {unit}"


def printable(text: str) -> str:
    """A text in one line, without what would steer a terminal."""
    return "".join(x if unicodedata.category(x)[0] != "C" else " " for x in text)


def cut(line: str, columns: int) -> str:
    """A line that fits; its end is … where something is left out."""
    if text_width.width(line) <= columns:
        return line
    while text_width.width(line) > columns - 1:
        line = line[:-1]
    return f"{line}…"


def _steps(run: RunState) -> str:
    total = "" if run.total_steps is None else f"/{run.total_steps:,}"
    return f"{run.step or 0:,}{total}"


def number(value: float | None, form: str) -> str:
    """A number of a table; one that no run has, such as 1e308, with four digits."""
    return "" if value is None else format(value, form if abs(value) < 1e12 else ".4g")


def _state(run: RunState) -> str:
    return printable(f"{run.state}: {run.reason}" if run.reason else run.state)
