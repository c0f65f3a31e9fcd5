"""What evaluations of a run's checkpoints found: a file that every call adds to, and a table of it.

`results.jsonl` has a line for each checkpoint, task and split: `{"task", "split", "step", "checkpoint", "loss",
"metrics"}`, with what teacher forcing and what predictions gave. A checkpoint that is evaluated again replaces what was
measured again of its line.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

NAME = "results.jsonl"
# Of teacher forcing, and its column, since a task may have a metric `accuracy` too; the file has the others.
_LOSSES = {"nats_per_target_token": "nats_per_target_token", "accuracy": "token_accuracy"}

Row = dict[str, Any]


def add(directory: Path, rows: Sequence[Row]) -> None:
    """Writes rows to the file of a directory, in order of task, split and step."""
    merged: dict[tuple[str, str, int, str], Row] = {}
    for row in [*read(directory), *rows]:
        place = (row["task"], row["split"], row["step"], row["checkpoint"])
        # An evaluation of the loss alone leaves the metrics that predictions had.
        before = merged.get(place, row)
        merged[place] = row | {kind: row[kind] or before[kind] for kind in ("loss", "metrics")}
    temporary = directory / f"{NAME}.tmp"
    lines = [json.dumps(merged[place], default=_plain) + "\n" for place in sorted(merged)]
    temporary.write_text("".join(lines), encoding="utf-8")
    temporary.replace(directory / NAME)


def _plain(value: Any) -> Any:
    """NumPy's and JAX's numbers, and whatever a metric returns that is none, for JSON."""
    return np.asarray(value).tolist() if np.asarray(value).dtype.kind in "biuf" else str(value)


def read(directory: Path) -> list[Row]:
    """The rows of a directory; none if it has no file."""
    path = directory / NAME
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def table(rows: Sequence[Row]) -> str:
    """A block for each task and split: a line for each checkpoint, a column for each metric."""
    blocks: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        blocks.setdefault((row["task"], row["split"]), []).append(row)
    return "\n\n".join(f"{task} ({split})\n{_block(found)}" for (task, split), found in blocks.items())


def _block(rows: Sequence[Row]) -> str:
    values = [_scalars(row) for row in rows]
    names = list(dict.fromkeys(name for found in values for name in found))
    lines = [["step", *names]]
    lines += [
        [str(row["step"]), *(shown(found[name]) if name in found else "-" for name in names)]
        for row, found in zip(rows, values, strict=True)
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _scalars(row: Row) -> Mapping[str, float]:
    losses = {column: row["loss"][name] for name, column in _LOSSES.items() if name in row["loss"]}
    return losses | {name: value for name, value in row["metrics"].items() if np.isscalar(value)}


def shown(value: Any) -> str:
    """A metric in a few characters."""
    is_number = np.size(value) == 1 and np.asarray(value).dtype.kind in "fiu"
    return f"{float(np.reshape(value, ())):.4g}" if is_number else str(value)
