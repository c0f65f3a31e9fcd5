"""`limba scoreboard RUN [RUN …]`: what runs have learned and what it cost, side by side, from their own files.

    limba scoreboard runs/small runs/base
    limba scoreboard runs/* --checkpoints all --out board.csv --picture board.png

A line for each run, one more for the average that it keeps, and one for a folder of `limba average` or an export: the
last evaluation's figures of text (docs/evaluate.md), accuracy over minimal pairs where `limba eval RUN --pairs` has
been there (a column for each file, with its number of pairs), hours, and seed. N-grams of the training split are below,
once for each set of targets. Nats per character compare between vocabularies, other figures between runs of one
vocabulary. Lines below the table say which rows do not compare. Nothing is evaluated, unless files are given:

    limba scoreboard runs/small exports/other --text texts.txt --pairs pairs.jsonl --train corpus.jsonl

measures these models, and folders of transformers, on the files (docs/scoreboard.md).
"""

import argparse
import csv
import io
from collections.abc import Sequence
from pathlib import Path

from limba.addons import table as table_of_addons
from limba.addons.pages import scoreboard_rows, written_pages
from limba.checkpoint_files import directories
from limba.files import json_text, named_flags, output_folder, untrusted_files, written_files
from limba.files.untrusted_files import cut
from limba.reports import results_table, text_figures, writers

_SHARES = ("likeliest", "among five")
_FORMATS = (".csv", ".json", ".md", ".txt")


# ------------------------------------------------------ the table ----------------------------------------------------


def table(rows: Sequence[scoreboard_rows.Row]) -> list[list[str]]:
    """Cells, with the head first: only columns that a row has."""
    pairs = dict.fromkeys(name for row in rows for name in row.figures if name.startswith(scoreboard_rows.PAIRS))
    names = ("step", *scoreboard_rows.FIGURES.values(), *pairs, "hours", "seed")
    columns = [name for name in names if any(name in row.figures for row in rows)]
    tasks = {row.task for row in rows}
    head = ["name", *(["targets of"] if len(tasks) > 1 else []), *map(cut, columns)]
    lines = [head]
    for row in rows:
        cells = [_cell(name, row.figures.get(name)) for name in columns]
        lines.append([cut(row.name), *([cut(row.task)] if len(tasks) > 1 else []), *cells])
    return lines


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return ""
    if column in _SHARES or column.startswith(scoreboard_rows.PAIRS):
        return f"{value:.1%}"
    if column in ("step", "seed"):
        return f"{value:.0f}"
    return f"{value:.2f}" if column == "hours" else f"{value:.4f}"


def rows_of(folder: Path, every_step: bool) -> list[scoreboard_rows.Row]:
    """The rows of a run, or of an export: the losses that its model card has.

    Raises:
      FileNotFoundError: if the folder is neither, or has no figures.
    """
    run = Path(directories.run_directory(folder))  # of `limba run`, whose output folder is an export, too
    report = output_folder.read_report(folder) if not (run / writers.METRICS_FILE).is_file() else {}
    card = folder / "README.md"
    if report.get("step") is None or not card.is_file():
        return scoreboard_rows.rows_of_run(folder, every_step)
    rows, text = [], untrusted_files.read_text(card)
    try:
        results = [result for part in table_of_addons.parts("card") for result in part.losses_in(text)]
    except ValueError as error:
        raise ValueError(f"{card} cannot be read ({error}); convert the run again.") from error
    for task, losses in results:
        if losses:
            figures = scoreboard_rows.figures_of({"step": report["step"], **losses})
            name = f"{folder}, average" if report.get("average") else str(folder)
            rows.append(scoreboard_rows.Row(name, task, figures))
    if not rows:
        raise FileNotFoundError(f"{folder} is an export whose model card has no loss; name its run.")
    return rows


def _content(rows: Sequence[scoreboard_rows.Row], ending: str) -> str:
    cells = table(rows)
    if ending == ".json":
        return json_text.dumps([{"name": row.name, "task": row.task, **row.figures} for row in rows], indent=2) + "\n"
    if ending == ".csv":
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows(map(untrusted_files.cell, line) for line in cells)
        return written.getvalue()
    if ending == ".md":
        from limba.reports import markdown

        lines = [cells[0], ["---"] * len(cells[0]), *cells[1:]]
        return "".join(
            [f"| {' | '.join(map(markdown.cell, line))} |\n" for line in lines]
            + [f"\n{markdown.cell(text)}\n" for text in scoreboard_rows.remarks(rows)]
        )
    return "\n".join([*results_table.aligned_behind_names(cells), *scoreboard_rows.remarks(rows)]) + "\n"


def _picture(runs: Sequence[Path]) -> bytes:
    """A PNG of nats per character over steps, and of the trigram beside them."""
    from limba.reports import loss_picture

    rows = [row for run in runs for row in rows_of(run, every_step=True)]
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
        curves[f"{trigram}, among tokens of text"] = [(min(steps), height), (max(steps), height)]
    if not curves:
        raise ValueError("No evaluation has nats per character, which --picture draws: its pieces have no known texts.")
    if len(curves) > len(loss_picture.COLORS):
        raise ValueError(
            f"--picture draws at most {len(loss_picture.COLORS)} curves, not {len(curves)}: name fewer runs."
        )
    picture = loss_picture.draw(list(curves.items()), "steps", "nats per character")
    if picture is None:
        raise ValueError("--picture is drawn by matplotlib, which is not installed: pip install 'limba[pictures]'.")
    return picture


# ------------------------------------------------------- command -----------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Prints the table, and writes it and its picture where they are asked for."""
    parser = named_flags.Parser(
        prog="limba scoreboard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="MODEL",
        help="folders of runs, means of `limba average` that `limba eval` has measured, or exports",
    )
    parser.add_argument(
        "--checkpoints",
        default="latest",
        metavar="WHICH",
        help="latest (default) or all; with files to measure on also steps, such as 500,1000",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table: .csv, .json, .md or .txt")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw nats per character over steps, as a .png")
    others = [*table_of_addons.parts("scoreboard")]
    for other in others:
        other.add_flags(parser)
    flags = parser.parse_args(argv)
    for other in others:
        other.check_flags(flags, parser)
        if other.is_asked(flags):
            return other.run(flags, list(map(str, flags.runs)), flags.checkpoints)
    if flags.checkpoints not in ("latest", "all"):
        parser.error(
            f"--checkpoints is {flags.checkpoints!r}; without files to measure on it is latest or all. Give one of "
            "these, or --text FILE."
        )
    if flags.out is not None and flags.out.suffix not in _FORMATS:
        parser.error(f"--out {flags.out}: its name ends with {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}.")
    if flags.picture is not None and flags.picture.suffix != ".png":
        parser.error(f"--picture {flags.picture}: its name ends with .png.")
    for flag, file in (("--out", flags.out), ("--picture", flags.picture)):
        if file is not None:
            written_pages.require_folder(file, flag)
    runs = list(map(Path, flags.runs))
    found = [row for run in runs for row in rows_of(run, flags.checkpoints == "all")]
    picture = _picture(runs) if flags.picture is not None else None
    rows = scoreboard_rows.ngrams_once(found)
    print(_content(rows, ".txt"), end="")
    if flags.out is not None:
        written_files.write_text(flags.out, _content(rows, flags.out.suffix))
    if picture is not None:
        flags.picture.write_bytes(picture)
    return 0


if __name__ == "__main__":
    from limba import command_line

    command_line.run_command(main)
