"""`limba scoreboard RUN [RUN …]`: what runs have learned and what it cost, side by side, from their own files.

    limba scoreboard runs/small runs/base
    limba scoreboard runs/* --checkpoints all --out board.csv --picture board.png

A line for each run: the last evaluation's figures of text (docs/evaluate.md), accuracy over minimal pairs where `limba
eval RUN --pairs` has been there, hours, and seed. N-grams of the training split are below, once for each set of
targets. Nats per character compare between vocabularies, other figures between runs of one vocabulary. Nothing is
evaluated.
"""

import argparse
import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.checkpoint_files import run_folder
from limba.files import json_text, storage
from limba.reports import goodput, pair_results, results_table, text_figures, writers

_FIGURES = {
    "nats_per_character": "nats/character",
    "nats_per_text_token": "nats/token",
    "nats_per_text_token_renormalized": "nats among text",
    "text_accuracy": "likeliest",
    "text_top_5_accuracy": "among five",
}
_SHARES = ("likeliest", "among five", "pairs")
_FORMATS = (".csv", ".json", ".md", ".txt")


@dataclasses.dataclass(frozen=True)
class Row:
    """One checkpoint of a run, or a predictor that has no steps.

    Attributes:
      figures: numbers by column; what is not known is missing.
    """

    name: str
    task: str
    figures: Mapping[str, float]


def rows_of_run(run: Path, every_step: bool) -> list[Row]:
    """The lines of a run's evaluations, and of the n-grams that they stand beside.

    Raises:
      FileNotFoundError: if the folder is no run, or has not been evaluated.
    """
    if not (run / writers.METRICS_FILE).is_file():
        raise FileNotFoundError(
            f"{run} has no {writers.METRICS_FILE}: name folders of runs (MODEL_DIR; of `limba run` OUTPUT_DIR/run). An "
            "export has no figures; its run has them."
        )
    prefix = "training_eval/"
    evaluations = [line for line in writers.read_metrics(run, prefix) if "nats_per_target_token" in line]
    if not evaluations:
        raise FileNotFoundError(f"{run} has no evaluation of a loss yet: wait for the first, or check EVAL_PERIOD.")
    by_task: dict[str, list[dict[str, Any]]] = {}
    for line in evaluations:
        by_task.setdefault(line["dataset"].removeprefix(prefix), []).append(line)
    pairs = _pairs_by_step(run)
    made = []
    for task, lines in by_task.items():
        for line in lines if every_step else lines[-1:]:
            costs = _costs(run) if line is lines[-1] else {}
            made.append(Row(str(run), task, _figures(line) | pairs.get(line["step"], {}) | costs))
        made += [Row(name, task, figures) for name, figures in _ngrams(lines[-1])]
    return made


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    known = {"step": line["step"], **{column: line[name] for name, column in _FIGURES.items() if name in line}}
    # Targets without text, such as labels, have a loss all the same.
    return known if "nats/token" in known else known | {"nats/token": line["nats_per_target_token"]}


def _ngrams(line: Mapping[str, Any]) -> list[tuple[str, dict[str, float]]]:
    columns = _FIGURES | {"nats_per_text_token": "nats among text"}
    found = []
    for key, title in text_figures.PREDICTORS.items():
        figures = {columns[name]: line[f"{key}/{name}"] for name in columns if f"{key}/{name}" in line}
        found += [(title, figures)] if figures else []
    return found


def _pairs_by_step(run: Path) -> dict[int, dict[str, float]]:
    """The accuracy over all pairs that were evaluated together with a checkpoint, as a share; else the files' mean."""
    by_step: dict[int, dict[str, float]] = {}
    for row in pair_results.read(run / "eval"):
        if (accuracy := row["metrics"].get("accuracy")) is not None:
            by_step.setdefault(row["step"], {})[row["task"]] = accuracy / 100
    all_files = pair_results.ALL_FILES
    means = {step: sum(found.values()) / len(found) for step, found in by_step.items()}
    return {step: {"pairs": found.get(all_files, means[step])} for step, found in by_step.items()}


def _costs(run: Path) -> dict[str, float]:
    """The hours of the run as a whole, and its seed."""
    attempts = goodput.read_attempts(run)
    costs = {"hours": sum(max(0.0, x.ended - x.began) for x in attempts) / 3600} if attempts else {}
    try:
        seed = run_folder.load_run_info(run)["seeds"]["random"]
    except (FileNotFoundError, KeyError, ValueError):  # no checkpoint yet, or of another program
        return costs
    return costs | {"seed": seed}


# ------------------------------------------------------ the table ----------------------------------------------------


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Cells, with the head first: only columns that a row has."""
    names = ("step", *_FIGURES.values(), "pairs", "hours", "seed")
    columns = [name for name in names if any(name in row.figures for row in rows)]
    tasks = {row.task for row in rows}
    head = ["", *(["targets of"] if len(tasks) > 1 else []), *columns]
    lines = [head]
    for row in rows:
        cells = [_cell(name, row.figures.get(name)) for name in columns]
        lines.append([row.name, *([row.task] if len(tasks) > 1 else []), *cells])
    return lines


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return ""
    if column in _SHARES:
        return f"{value:.1%}"
    if column in ("step", "seed"):
        return f"{value:.0f}"
    return f"{value:.2f}" if column == "hours" else f"{value:.4f}"


def _content(rows: Sequence[Row], ending: str) -> str:
    cells = table(rows)
    if ending == ".json":
        return json_text.dumps([{"name": row.name, "task": row.task, **row.figures} for row in rows], indent=2) + "\n"
    if ending == ".csv":
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows(cells)
        return written.getvalue()
    if ending == ".md":
        lines = [cells[0], ["---"] * len(cells[0]), *cells[1:]]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return "\n".join(results_table.aligned_behind_names(cells)) + "\n"


def _picture(runs: Sequence[Path]) -> bytes | None:
    """A PNG of nats per character over steps, and of the trigram beside them."""
    from convert.exports.cards import loss_picture

    rows = [row for run in runs for row in rows_of_run(run, every_step=True)]
    tasks = {row.task for row in rows}
    of_task = {task: f", {task}" if len(tasks) > 1 else "" for task in tasks}
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if "step" in row.figures and "nats/character" in row.figures:
            name = f"{row.name}{of_task[row.task]}"
            curves.setdefault(name, []).append((row.figures["step"], row.figures["nats/character"]))
    trigram = text_figures.PREDICTORS["left_trigram"]
    found = {row.figures["nats/character"] for row in rows if row.name == trigram and "nats/character" in row.figures}
    if len(found) == 1:  # the same targets
        (height,) = found
        steps = [step for points in curves.values() for step, _ in points]
        curves[f"{trigram}, told that text follows"] = [(min(steps), height), (max(steps), height)]
    if not curves:
        raise ValueError("No evaluation has nats per character, which --picture draws: its pieces have no known texts.")
    if len(curves) > len(loss_picture.COLORS):
        raise ValueError(
            f"--picture draws at most {len(loss_picture.COLORS)} curves, not {len(curves)}: name fewer runs."
        )
    return loss_picture.draw(list(curves.items()), "steps", "nats per character")


# ------------------------------------------------------- command -----------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Prints the table, and writes it and its picture where they are asked for."""
    parser = argparse.ArgumentParser(
        prog="limba scoreboard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    parser.add_argument("--checkpoints", choices=("latest", "all"), default="latest", help="latest (default), or all")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table: .csv, .json, .md or .txt")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw nats per character over steps, as a .png")
    flags = parser.parse_args(argv)
    if flags.out is not None and flags.out.suffix not in _FORMATS:
        parser.error(f"--out {flags.out}: its name ends with {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}.")
    if flags.picture is not None and flags.picture.suffix != ".png":
        parser.error(f"--picture {flags.picture}: its name ends with .png.")
    found = [row for run in flags.runs for row in rows_of_run(run, flags.checkpoints == "all")]
    picture = _picture(flags.runs) if flags.picture is not None else None
    rows = _ngrams_once(found)
    print(_content(rows, ".txt"), end="")
    if flags.out is not None:
        storage.replace_text(flags.out, _content(rows, flags.out.suffix))
    if picture is not None:
        flags.picture.write_bytes(picture)
    return 0


def _ngrams_once(rows: Sequence[Row]) -> list[Row]:
    """Runs first; then n-grams, once where runs were evaluated on the same targets."""
    ngrams = dict.fromkeys(
        (row.name, row.task, tuple(row.figures.items())) for row in rows if "step" not in row.figures
    )
    return [row for row in rows if "step" in row.figures] + [Row(n, task, dict(x)) for n, task, x in ngrams]


if __name__ == "__main__":
    from limba import command_line

    command_line.run_command(main)
