"""The results of minimal pairs: `pairs_results.jsonl`, with lines as those of `results.jsonl`, and a table of them.

Metrics are those of the add-on pairs: `accuracy` over all pairs, `accuracy/PHENOMENON` …
"ngrams", where it is there, has those of n-grams by name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.reports import results_table

NAME = "pairs_results.jsonl"
ALL = "all"
ALL_FILES = "all_files"  # the task of rows about several files together
# Characters of a line.
_WIDEST = 120


def add(directory: Path, rows: Sequence[results_table.Row]) -> None:
    """Writes rows to the file of a directory, in the place of earlier ones of the same task and checkpoint."""
    results_table.add(directory, rows, NAME)


def read(directory: Path) -> list[results_table.Row]:
    """The rows of the file in a directory; [] if there is none."""
    return results_table.read(directory, NAME)


def table(rows: Sequence[results_table.Row]) -> str:
    """Text with a block for each task: a line for each phenomenon and one for all, a column for each checkpoint.

    Cells are accuracies in percent, those of checkpoints with their 95 % intervals if there is room.
    """
    blocks: dict[str, list[results_table.Row]] = {}
    for row in rows:
        blocks.setdefault(row["task"], []).append(row)
    return "\n\n".join(f"{task}: {_block(found)}" for task, found in blocks.items())


def _block(rows: Sequence[results_table.Row]) -> str:
    titles = [f"step {row['step']}" for row in rows]
    columns = [row["metrics"] for row in rows]
    last = columns[-1]
    names = [name.partition("/")[2] for name in last if name.startswith("accuracy/")]
    endings = [*((name, f"/{name}") for name in names), (ALL, "")]
    ngrams: Mapping[str, Mapping[str, Any]] = rows[-1].get("ngrams") or {}
    for with_intervals in (True, False):
        lines = [["phenomenon", "pairs", *(["chance", *ngrams] if ngrams else []), *titles]]
        for name, end in endings:
            cells = ["50.0", *(_cell(found, end, False) for found in ngrams.values())] if ngrams else []
            cells += [_cell(found, end, with_intervals) for found in columns]
            lines.append([name, _shown(last.get(f"pairs{end}")), *cells])
        text = results_table.aligned_behind_names(lines)
        if len(text[0]) <= _WIDEST:
            break
    intervals = " with 95 % intervals" if with_intervals else ""
    ties = sum(int(found.get("ties") or 0) for found in columns)
    about = f"{ties:,} ties, counted as wrong" if ties else "no ties"
    return "\n".join([f"accuracy in percent{intervals}, {about}", *text])


def _cell(metrics: Mapping[str, Any], ending: str, with_interval: bool) -> str:
    values = [metrics.get(f"{name}{ending}") for name in ("accuracy", "accuracy_low", "accuracy_high")]
    if not all(isinstance(value, int | float) for value in values):
        return "-" if f"accuracy{ending}" not in metrics else "undefined"
    accuracy, low, high = map(float, values)  # type: ignore[arg-type]
    return f"{accuracy:.1f} ({low:.1f} to {high:.1f})" if with_interval else f"{accuracy:.1f}"


def _shown(count: Any) -> str:
    return f"{count:,}" if isinstance(count, int | float) else "-"
