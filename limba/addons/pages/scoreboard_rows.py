"""The rows of `limba scoreboard`: figures of runs and of n-grams beside them, and which of them do not compare."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.checkpoint_files import directories, run_folder
from limba.files.untrusted_files import cut
from limba.reports import average_lines, goodput, json_lines, pair_results, results_table, text_figures, writers

FIGURES = {
    "nats_per_character": "nats/character",
    "nats_per_text_token": "nats/token",
    "nats_per_text_token_renormalized": "nats among text",
    "text_accuracy": "likeliest",
    "text_top_5_accuracy": "among five",
}
PAIRS = "pairs of "  # before the file, in the name of a column
_SIZES = {"num_text_tokens": "tokens of text", "num_target_tokens": "target tokens"}
_PREFIX = "training_eval/"
_MOST_NAMES = 2  # of files with pairs that were evaluated together


@dataclasses.dataclass(frozen=True)
class Row:
    """One checkpoint of a run, or a predictor that has no steps.

    Attributes:
      figures: numbers by column; what is not known is missing.
      targets: of the evaluation, as far as its numbers tell: their sizes, and figures of n-grams; either may be empty.
      run: of n-grams, that they stand beside.
    """

    name: str
    task: str
    figures: Mapping[str, float]
    targets: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())
    run: str = ""


def rows_of_run(run: Path, every_step: bool) -> list[Row]:
    """The lines of a run's evaluations, of its average too if it keeps one, and of the n-grams that they stand beside.

    Args:
      run: its directory, an output folder of `limba run`, or one of `limba average`, which `limba eval` has measured.

    Raises:
      FileNotFoundError: if the folder is no run, or has not been evaluated.
    """
    name, run = str(run), Path(directories.run_directory(run))
    trained = (run / writers.METRICS_FILE).is_file()
    measured = writers.read_metrics(run, _PREFIX) if trained else _lines_of_eval(run)
    evaluations = [line for line in measured if "nats_per_target_token" in line]
    if not evaluations and (trained or (run / "mean.json").is_file()):
        remedy = "wait for the first, or check EVAL_PERIOD" if trained else f"limba eval {name} makes one"
        raise FileNotFoundError(f"{run} has no evaluation of a loss yet: {remedy}.")
    if not evaluations:
        raise FileNotFoundError(
            f"{run} has no {writers.METRICS_FILE}: name folders of runs (MODEL_DIR, or OUTPUT_DIR of `limba run`), "
            "means that `limba eval` has measured, or exports whose model card has a loss. With --text FILE any "
            "model is measured (docs/scoreboard.md)."
        )
    made = []
    by_task = _by_task(average_lines.of_parameters(evaluations))
    targets = {task: (_sizes(lines[-1]), _named_ngrams(lines[-1])) for task, lines in by_task.items()}
    of_average = _by_task(average_lines.of_average(evaluations))
    costs, pairs = _costs(run), _pairs_by_step(run / "eval")
    pairs_of_average = _pairs_by_step(run / "eval_average")
    for task, lines in by_task.items():
        for line in lines if every_step else lines[-1:]:
            of_run = costs if line is lines[-1] else {}
            figures = figures_of(line) | pairs.get(line["step"], {}) | of_run
            made.append(Row(name, task, figures, (_sizes(line), targets[task][1])))
        averages = of_average.get(task, [])
        for line in averages if every_step else averages[-1:]:
            figures = figures_of(line) | pairs_of_average.get(line["step"], {})
            made.append(Row(f"{name}, average", task, figures, targets[task]))
        made += [Row(ngram, task, figures, targets[task], name) for ngram, figures in _ngrams(lines[-1])]
    return made


def _lines_of_eval(run: Path) -> list[dict[str, Any]]:
    """What `limba eval` has measured of a folder without a training, as lines of a training's evaluations."""
    rows = results_table.read(run / "eval")
    several = len({row["split"] for row in rows}) > 1
    names = [f"{row['task']} {row['split']}" if several else row["task"] for row in rows]
    return [
        {"step": row["step"], "dataset": _PREFIX + name, **_numbers(row["loss"])}
        for name, row in zip(names, rows, strict=True)
    ]


def _numbers(found: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are numbers, or null, as files have what is not finite."""
    return {name: value for name, value in found.items() if value is None or json_lines.is_number(value)}


def _by_task(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    by_task: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        by_task.setdefault(line["dataset"].removeprefix(_PREFIX), []).append(line)
    return by_task


def figures_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The figures of an evaluation by column; of n-grams beside it none."""
    known = {"step": line["step"], **{column: line[name] for name, column in FIGURES.items() if name in line}}
    # Targets without text, such as labels, have a loss all the same.
    if {"nats/token", "nats among text"} & known.keys():
        return known
    return known | {"nats/token": line["nats_per_target_token"]}


def _sizes(line: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{line[name]:,.0f} {what}" for name, what in _SIZES.items() if name in line)


def _named_ngrams(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple((ngram, *figures.items()) for ngram, figures in _ngrams(line))


def _ngrams(line: Mapping[str, Any]) -> list[tuple[str, dict[str, float]]]:
    columns = FIGURES | {"nats_per_text_token": "nats among text"}
    found = []
    for key, title in text_figures.PREDICTORS.items():
        figures = {columns[name]: line[f"{key}/{name}"] for name in columns if f"{key}/{name}" in line}
        found += [(title, figures)] if figures else []
    return found


def _pairs_by_step(folder: Path) -> dict[int, dict[str, float]]:
    """The accuracy over the pairs of each file as a share; over those of all together where there are several."""
    by_step: dict[int, list[results_table.Row]] = {}
    for row in pair_results.read(folder):
        metrics = {name: x for name, x in _numbers(row["metrics"]).items() if x is not None}
        if "accuracy" in metrics and not row.get("score"):  # other kinds than the usual one
            row = {**row, "metrics": metrics, "file": str(row.get("file") or "")}
            by_step.setdefault(row["step"], []).append(row)
    return {step: _shares_of_pairs(rows) for step, rows in by_step.items()}


def _shares_of_pairs(rows: Sequence[results_table.Row]) -> dict[str, float]:
    single = {Path(row.get("file") or row["task"]).name: row for row in rows if row["task"] != pair_results.ALL_FILES}
    together = [row for row in rows if row["task"] == pair_results.ALL_FILES]
    names = sorted(single)
    of_all = " + ".join(names if len(names) <= _MOST_NAMES else [*names[:1], f"{len(names) - 1} more"])
    named = [(of_all, together[0])] if together else list(single.items())
    shares = {}
    for name, row in named:
        number = row["metrics"].get("pairs")
        title = f"{PAIRS}{name}" + (f" ({number:,.0f})" if number is not None else "")
        shares[title] = row["metrics"]["accuracy"] / 100
    return shares


def _costs(run: Path) -> dict[str, float]:
    """The hours of the run as a whole, and its seed."""
    attempts = goodput.read_attempts(run)
    costs = {"hours": sum(max(0.0, x.ended - x.began) for x in attempts) / 3600} if attempts else {}
    try:
        seed = run_folder.load_run_info(run)["seeds"]["random"]
    except (FileNotFoundError, KeyError, ValueError):  # no checkpoint yet, or of another program
        return costs
    return costs | {"seed": seed}


def remarks(rows: Sequence[Row]) -> list[str]:
    """Which rows of runs do not compare: another set of pairs, or other targets."""
    runs = [row for row in rows if "step" in row.figures]
    scored = {files for row in runs if (files := tuple(x for x in row.figures if x.startswith(PAIRS)))}
    said = []
    if len(scored) > 1:
        said.append("Runs were scored on different files of pairs: accuracies compare within a column alone.")
    of_task: dict[str, list[Row]] = {}
    for row in runs:
        of_task.setdefault(row.task, []).append(row)
    for task, rows_of_task in of_task.items():
        of_targets: dict[tuple[Any, ...], list[str]] = {}
        # Evaluations without n-grams compare by their sizes; of an export nothing is known.
        for row in sorted((row for row in rows_of_task if any(row.targets)), key=lambda x: not x.targets[1]):
            sizes, ngrams = row.targets
            alike = next((x for x in of_targets if x[0] == sizes and not ngrams), row.targets)
            of_targets.setdefault(alike, []).append(row.name)
        if len(of_targets) > 1:
            groups = "; ".join(
                f"{', '.join(dict.fromkeys(names))}: {', '.join(sizes) or 'of unknown size'}"
                for (sizes, _), names in of_targets.items()
            )
            said.append(
                f"Evaluations of {cut(task)} had different targets or n-grams, and their rows do not compare, but for "
                f"nats per character between vocabularies on the same texts ({groups})."
            )
    return said


def ngrams_once(rows: Sequence[Row]) -> list[Row]:
    """Runs first; then n-grams, once where runs were evaluated on the same targets, else with the runs' names."""
    ngrams = [row for row in rows if "step" not in row.figures]
    runs_of: dict[tuple[Any, ...], dict[str, None]] = {}
    for row in ngrams:
        runs_of.setdefault((row.task, row.targets), {})[row.run] = None
    made: dict[tuple[Any, ...], Row] = {}
    of_task = collections.Counter(task for task, _ in runs_of)
    for row in ngrams:
        is_only = of_task[row.task] == 1
        beside = "" if is_only else f", beside {', '.join(runs_of[row.task, row.targets])}"
        made.setdefault((row.task, row.targets, row.name), dataclasses.replace(row, name=row.name + beside))
    return [row for row in rows if "step" in row.figures] + list(made.values())
