"""The results of evaluating a run's checkpoints: a file to which every evaluation adds, and a table of it.

`results.jsonl` has a line for each checkpoint, task and split: `{"task", "split", "step", "checkpoint", "loss",
"metrics"}`. "loss" comes from teacher forcing, "metrics" from predictions, and "counts", where it is there,
says how these were made: examples, tokens, seconds. A new evaluation of a checkpoint replaces those of the two that it
measured.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from limba.files import json_text, storage
from limba.reports import json_lines, text_width

NAME = "results.jsonl"
# Results of teacher forcing that the table shows, and their columns: a task may have a metric `accuracy` of its own.
_LOSSES = {
    **{name: name for name in ("nats_per_target_token", "mean_squared_error")},
    "accuracy": "token_accuracy",
}
# Where targets have sentinels, which are easy, those of text say more.
_OF_TEXT = {name: name for name in ("nats_per_text_token", "text_accuracy", "text_top_5_accuracy")}
_OF_SENTINELS = "nats_per_sentinel"
# Characters of a line.
_WIDEST = 120

Row = dict[str, Any]


def add(directory: Path, rows: Sequence[Row], name: str = NAME) -> None:
    """Writes rows to the file of a directory, in order of task, split and step."""
    merged: dict[tuple[str, str, int, str], Row] = {}
    earlier = json_lines.read_and_repair(directory / name, _is_row)
    for row in [*earlier, *rows]:
        key = (row["task"], row["split"], row["step"], row["checkpoint"])
        # An evaluation of the loss alone keeps the metrics of earlier predictions.
        before = merged.get(key, row)
        merged[key] = row | {kind: row[kind] or before[kind] for kind in ("loss", "metrics")}
    lines = [json_text.dumps(merged[key], default=_plain, ensure_ascii=False) + "\n" for key in sorted(merged)]
    storage.replace_text(directory / name, "".join(lines))


def _plain(value: Any) -> Any:
    """A NumPy or JAX number as a plain one, anything else as text, for JSON."""
    return np.asarray(value).tolist() if np.asarray(value).dtype.kind in "biuf" else str(value)


_KINDS = {"task": str, "split": str, "step": int, "checkpoint": str, "loss": dict, "metrics": dict}


def _is_row(row: Row) -> bool:
    return all(isinstance(row.get(name), kind) for name, kind in _KINDS.items()) and 0 <= row["step"] < 2**63


def read(directory: Path, name: str = NAME) -> list[Row]:
    """The rows of the file in a directory, without damaged lines; [] if there is none."""
    return json_lines.read(directory / name, _is_row)


def table(rows: Sequence[Row]) -> str:
    """Text with a block for each task and split: a line for each checkpoint, a column for each metric.

    A block of many metrics has them as lines, where that is narrower.
    """
    blocks: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        blocks.setdefault((row["task"], row["split"]), []).append(row)
    return "\n\n".join(f"{task} ({split})\n{_block(found)}" for (task, split), found in blocks.items())


def _block(rows: Sequence[Row]) -> str:
    values = [_scalars(row) for row in rows]
    names = list(dict.fromkeys(name for found in values for name in found))
    lines = [["step", *names]]
    for row, found in zip(rows, values, strict=True):
        lines.append([str(row["step"]), *(shown(found[name]) if name in found else "-" for name in names)])
    turned = list(map(list, zip(*lines, strict=True)))
    if text_width.width(aligned(lines)[0]) > max(_WIDEST, text_width.width(aligned(turned)[0])):
        lines = turned
    return "\n".join(line.rstrip() for line in aligned(lines))


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text of cells, whose columns end at the same place."""
    widths = [max(map(text_width.width, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(map(text_width.rjust, line, widths)) for line in lines]


def aligned_behind_names(lines: Sequence[Sequence[str]]) -> list[str]:
    """As `aligned`, but the first column begins at the same place, and no line ends with blanks."""
    width = max(text_width.width(line[0]) for line in lines)
    return [line.rstrip() for line in aligned([[text_width.ljust(line[0], width), *line[1:]] for line in lines])]


def _scalars(row: Row) -> Mapping[str, Any]:
    shown_losses = _LOSSES | (_OF_TEXT if _OF_SENTINELS in row["loss"] else {})
    losses = {column: row["loss"][name] for name, column in shown_losses.items() if name in row["loss"]}
    return losses | {name: value for name, value in row["metrics"].items() if value is None or np.isscalar(value)}


def shown(value: Any) -> str:
    """A metric in a few characters. One that is not a number, which files have as null, is undefined."""
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return "undefined"
    is_number = np.size(value) == 1 and np.asarray(value).dtype.kind in "fiu"
    return f"{float(np.reshape(value, ())):.4g}" if is_number else str(value)
