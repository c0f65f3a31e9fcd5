"""The parts of a page that are text: tables and lists of what runs are. All that users wrote is escaped."""

import html
import itertools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from limba.addons.pages import run_curves, run_state, runs_table
from limba.addons.pages.run_curves import TEACHER_FORCED, TRAIN
from limba.addons.pages.run_record import RunRecord
from limba.files.number_ranges import is_number
from limba.reports import goodput, text_figures

# Characters of a text of an example; files of a spike, and rows of each.
_LONGEST = 600
_MOST_DOCUMENTS, _MOST_ROWS, _MOST_SPIKES = 5, 5, 50
_HOURS_A_DAY = 24
Cells = Sequence[Sequence[str]]


def escape(text: Any) -> str:
    return html.escape(str(text))


def table(head: Sequence[str], rows: Cells, kind: str = "numbers") -> str:
    """A table of plain texts; "" without rows. Columns in which no row has anything are left out."""
    if not rows:
        return ""
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    lines = [f"<tr>{''.join(f'<th>{escape(head[i])}</th>' for i in kept)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{escape(row[i])}</td>' for i in kept)}</tr>" for row in rows]
    return f'<div class="wide"><table class="{kind}">{"".join(lines)}</table></div>'


def facts(runs: Sequence[RunRecord], values: Mapping[str, Sequence[Any]], kind: str = "facts") -> str:
    """A table with a column for each run; what no run has is left out."""
    rows = [[name, *("" if x is None else str(x) for x in row)] for name, row in values.items()]
    rows = [row for row in rows if any(row[1:])]
    head = ["", *(run.name for run in runs)] if len(runs) > 1 else ["", ""]
    return table(head, rows, kind)


# ------------------------------------------------------ overview -----------------------------------------------------


def overview(runs: Sequence[RunRecord]) -> str:
    rows = []
    for run in runs:
        train, validation = run.curves.get(TRAIN), _validation(run)
        loss = None if train is None else _last(train, ("loss", *run_curves.LOSSES))
        total = f" of {run.total_steps:,}" if run.total_steps is not None else ""
        left = hours_left(run)
        speed = None if train is None else train.last(run_curves.TOKENS_PER_SECOND)
        rows.append(
            [
                *(run.name, f"{run.step:,}{total}"),
                *(runs_table.number(x, ".4f") for x in (loss, validation)),
                runs_table.number(speed, ",.0f"),
                *(hours(x) for x in (hours_made(run), left)),
                f"{run.state}: {run.reason}" if run.reason else run.state,
            ]
        )
    head = ("run", "step", "loss", "validation loss", "tokens/s", "time so far", "time left", "state")
    damaged = "".join(
        f'<p class="warning">{escape(run.folder)}: damaged lines of metrics.jsonl are left out: {run.damaged}.</p>'
        for run in runs
        if run.damaged
    )
    return table(head, rows, "numbers words-last") + damaged


def _validation(run: RunRecord) -> float | None:
    names = [name for name in run.curves if name.startswith(TEACHER_FORCED) and not run_curves.of_average(name)]
    names.sort(key=lambda name: name != f"{TEACHER_FORCED}{run.task}")
    return _last(run.curves[names[0]], run_curves.LOSSES) if names else None


def _last(curves: run_curves.Curves, names: Sequence[str]) -> float | None:
    return next((x for name in names if (x := curves.last(name)) is not None), None)


def hours(value: float | None) -> str:
    """`35 min`, `7.5 h`, `3.2 days`."""
    if value is None:
        return ""
    if value < 2:
        return f"{60 * value:.0f} min" if value >= 1 / 30 else f"{3600 * value:.0f} s"
    return f"{value:.1f} h" if value < 2 * _HOURS_A_DAY else f"{value / _HOURS_A_DAY:.1f} days"


def hours_made(run: RunRecord) -> float | None:
    """Of all starts of a run, without the time between them."""
    return float(run.pace[-1, 1]) if len(run.pace) else None


def hours_left(run: RunRecord) -> float | None:
    """To the last step, as fast as in the second half of the steps so far, with its evaluations and restarts."""
    if run.total_steps is None or run.step >= run.total_steps or len(run.pace) < 2:
        return None
    first, last = run.pace[0, 0], run.pace[-1, 0]
    middle = (first + last) / 2
    begin, end = np.interp([middle, last], run.pace[:, 0], run.pace[:, 1])
    return None if last <= middle else float((run.total_steps - run.step) * (end - begin) / (last - middle))


# ------------------------------------------------- figures, speed, cost ----------------------------------------------


def figures_of_text(runs: Sequence[RunRecord]) -> str:
    """The newest evaluation's figures of text beside n-grams, for each run and task that has them."""
    parts = []
    for run in runs:
        for dataset, curves in run.curves.items():
            if not dataset.startswith(TEACHER_FORCED):
                continue
            line = {name: float(column[-1]) for name, column in curves.columns.items() if np.isfinite(column[-1])}
            first = {name: float(column[0]) for name, column in curves.columns.items() if np.isfinite(column[0])}
            first["step"] = int(curves.steps[0])
            if rows := text_figures.rows(line, first if len(curves.steps) > 1 else None):
                of = f"{run.name}: " if len(runs) > 1 else ""
                title = f"{of}{dataset.removeprefix(TEACHER_FORCED)}, step {int(curves.steps[-1]):,}"
                parts.append(f"<h4>{escape(title)}</h4>{table(text_figures.HEAD, rows)}")
    return f"<p>{escape(text_figures.EXPLAINED)}</p>{''.join(parts)}" if parts else ""


def time_spent(runs: Sequence[RunRecord]) -> str:
    """Goodput by kind of time, and the starts."""
    if not any(run.attempts for run in runs):
        return ""
    spent = []
    for run in runs:
        attempts = list(run.attempts)
        spent.append(goodput.summarize(attempts, [min(x.step_seconds, default=0) for x in attempts]))
    totals = [max(sum(seconds.values()), 1e-9) for seconds in spent]
    values: dict[str, list[Any]] = {"starts": [len(run.attempts) or None for run in runs]}
    for kind, words in goodput.KINDS.items():
        cells = [
            f"{seconds[kind] / total:.1%} ({hours(seconds[kind] / 3600)})" if seconds[kind] >= 0.5 else None
            for seconds, total in zip(spent, totals, strict=True)
        ]
        values[words] = cells
    return facts(runs, values)


def costs(runs: Sequence[RunRecord], price: float | None) -> str:
    """So far, and to the last step at the pace of the second half."""
    names = ("steps", "time", "tokens", "FLOPs", f"price, at {price:g} an hour" if price is not None else "price")
    rows = []
    for run in runs:
        made, left = run.step - run.initial_step, None
        so_far = [made, hours_made(run), run.tokens_per_step, run.flops_per_step, None]
        if run.total_steps is not None and run.step < run.total_steps:
            left = run.total_steps - run.step
        for when, steps, hour in (("so far", made, so_far[1]), ("to the end", left, hours_left(run))):
            if steps is None:
                continue
            amounts = [None if x is None else x * steps for x in so_far[2:4]]
            rows.append(
                [
                    *(run.name if len(runs) > 1 else "", when, f"{steps:,}", hours(hour)),
                    *("" if x is None else _large(x) for x in amounts),
                    "" if price is None or hour is None else f"{price * hour:,.2f}",
                ]
            )
    note = "FLOPs are three times the products of matrices of the forward pass, as <code>limba plan</code> counts them."
    note = f'<p class="note">{note}</p>' if any(row[5] for row in rows) else ""
    return table(("", "", *names), rows) + note


def _large(value: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size <= value < 1e15:
            return f"{value / size:.4g} {unit}"
    return f"{value:.3g}"


# --------------------------------------------------- spikes, predictions ---------------------------------------------


def spikes(runs: Sequence[RunRecord]) -> str:
    rows, left_out = [], 0
    for run in runs:
        left_out += len(run.spikes[:-_MOST_SPIKES])
        for spike in run.spikes[-_MOST_SPIKES:]:
            documents = spike.get("documents") or []
            documents = documents if isinstance(documents, list) else [documents]
            more = f" and {len(documents) - _MOST_DOCUMENTS} more" if len(documents) > _MOST_DOCUMENTS else ""
            back = spike.get("back_to")
            rows.append(
                [
                    *(run.name if len(runs) > 1 else "", f"{spike['step']:,}", f"{back:,}" if _is_int(back) else ""),
                    cut(spike.get("reason") or ""),
                    cut("; ".join(map(_shown, documents[:_MOST_DOCUMENTS]))) + more,
                ]
            )
    more = f'<p class="note">{left_out} earlier spikes are in spikes.jsonl.</p>' if left_out else ""
    return table(("", "step", "back to", "reason", "documents"), rows, "texts") + more


def _is_int(value: Any) -> bool:
    return isinstance(value, int)


def _shown(document: Any) -> str:
    """A file of `spikes.jsonl` with the rows that were passed over, such as "corpus.jsonl: 3, 7 and 20 more rows"."""
    if not (isinstance(document, dict) and isinstance(document.get("rows"), list)):
        return str(document)
    rows = document["rows"]
    more = f" and {len(rows) - _MOST_ROWS} more rows" if len(rows) > _MOST_ROWS else ""
    name = str(document.get("file")).rpartition("/")[2]
    return f"{name}: {', '.join(map(str, rows[:_MOST_ROWS]))}{more}"


def predictions(runs: Sequence[RunRecord]) -> str:
    """Outputs for the same examples, by step."""
    parts = []
    for run in runs:
        for task, examples in run.predictions.items():
            parts.append(f"<h4>{escape(f'{run.name}: {task}' if len(runs) > 1 else task)}</h4>")
            for example in examples:
                rows = [["input", cut(example.text)], ["target", cut(example.target)]]
                rows += [[f"step {step:,}", cut(text) or "(nothing)"] for step, text in example.outputs.items()]
                parts.append(table(("", ""), rows, "texts example"))
    return "".join(parts)


def cut(text: Any) -> str:
    text = str(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


# ------------------------------------------- data, environment, configuration, commands ------------------------------


def data(runs: Sequence[RunRecord]) -> str:
    def of_vocabulary(run: RunRecord) -> str | None:
        record = run.info.get("vocabulary") or {}
        file = record.get("tokenizer_file") or record.get("sentencepiece_model_file")
        return f"{file or record.get('class')}, {record['vocab_size']:,} ids" if "vocab_size" in record else None

    def lengths(run: RunRecord) -> str | None:
        found = run.info.get("feature_lengths") or {}
        return ", ".join(f"{name} {length}" for name, length in found.items()) or None

    values = {
        "task of training": [run.info.get("task") or run.task for run in runs],
        "task of validation": [run.task if run.info.get("task") not in (None, run.task) else None for run in runs],
        "lengths in tokens": map(lengths, runs),
        "rows of a batch": [run.info.get("batch_size") for run in runs],
        "rows of an epoch": [run.info.get("rows_per_epoch") for run in runs],
        "vocabulary": map(of_vocabulary, runs),
        "unknown tokens": map(_unknown, runs),
    }
    shown = facts(runs, {name: list(row) for name, row in values.items()})
    looks = [f"limba preview {shlex.quote(str(run.folder / run_state.GIN))}" for run in runs if run.gin]
    more = f"<p>More of the data, as the model gets them:</p>{commands_text(looks)}" if looks else ""
    return shown + "".join(_first_rows(run, len(runs) > 1) for run in runs) + more


def _first_rows(run: RunRecord, names: bool) -> str:
    """Rows of the first batch, as text."""
    rows = [row for row in _items(run.first_rows.get("rows")) if isinstance(row, dict)]
    if not rows:
        return ""
    title = f"{run.name}: rows" if names else "Rows"
    texts = [[["", name, cut(text)] for name, text in row.items()] for row in rows]
    shown = "".join(table(("", "", ""), row, "texts example") for row in texts)
    return f"<h4>{escape(title)} of the first batch</h4>{shown}"


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _unknown(run: RunRecord) -> str | None:
    """The share of unknown tokens in the first batch, where a token stands for what is unknown."""
    shares = run.first_rows.get("unknown")
    shares = shares if isinstance(shares, dict) else {}
    known = [f"{share:.2%} of the {name}" for name, share in shares.items() if isinstance(share, float)]
    return f"{', '.join(known)} of the first batch" if known else None


def environment(runs: Sequence[RunRecord]) -> str:
    infos = [run.info for run in runs]
    records = [_table(info.get("environment")) for info in infos]
    counts = [info.get("parameters") for info in infos]
    values: dict[str, list[Any]] = {
        "devices": [
            ", ".join(f"{n} × {kind}" for kind, n in _table(x.get("devices")).items()) or None for x in records
        ],
        "processes": [x.get("processes") for x in records],
        "mesh": [", ".join(f"{name} {n}" for name, n in _table(x.get("mesh")).items()) or None for x in records],
        "parameters": [f"{count:,}" if is_number(count) else None for count in counts],
        "seeds": [", ".join(f"{k} {v}" for k, v in _table(info.get("seeds")).items()) or None for info in infos],
        "folder": [run.folder for run in runs],
    }
    commits, packages = ([_table(x.get(key)) for x in of] for key, of in (("commits", infos), ("packages", records)))
    for name in dict.fromkeys(itertools.chain.from_iterable(commits)):
        values[f"commit of {name}"] = [x.get(name) for x in commits]
    for name in dict.fromkeys(itertools.chain.from_iterable(packages)):
        values[name] = [x.get(name) for x in packages]
    return facts(runs, values)


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def differences(runs: Sequence[RunRecord]) -> str:
    """The bindings that are not the same in all runs."""
    if len(runs) < 2:
        return ""
    bound = [{x.name: repr(x.value) for x in run.recipe.bindings} for run in runs]
    names = sorted(dict.fromkeys(name for of_run in bound for name in of_run))
    values = {name: [of_run.get(name, "–") for of_run in bound] for name in names}
    values = {name: list(map(cut, row)) for name, row in values.items() if len(set(row)) > 1}
    return facts(runs, values) or "<p>The bindings are the same in all runs.</p>"


def configurations(runs: Sequence[RunRecord]) -> str:
    parts = []
    for run in runs:
        if run.gin:
            title = f"{run.name}: config.gin" if len(runs) > 1 else "config.gin, all bindings in use"
            parts.append(f"<details><summary>{escape(title)}</summary><pre>{escape(run.gin)}</pre></details>")
    return "".join(parts)


def next_commands(runs: Sequence[RunRecord]) -> str:
    """What to type to go on with a run."""
    parts = []
    for run in runs:
        folder, gin = shlex.quote(str(run.folder)), shlex.quote(str(run.folder / run_state.GIN))
        name = shlex.quote(f"exports/{run.folder.name}")
        lines = []
        if run.state != run_state.RUNNING and run.gin:
            lines.append(f"limba train {gin}{_more_steps(run) if run.state == run_state.FINISHED else ''}")
        lines += [f"limba try {folder}"] if run.info.get("network_class", "T5Config") == "T5Config" else []
        lines += [f"limba eval {folder} --checkpoints all", f"limba convert to-hf {folder} {name}"]
        title = f"<h4>{escape(run.name)}</h4>" if len(runs) > 1 else ""
        parts.append(title + commands_text(lines))
    return "".join(parts)


def _more_steps(run: RunRecord) -> str:
    """The binding that doubles the length of a run."""
    for macro in ("TRAIN_STEPS_RELATIVE", "TRAIN_STEPS"):
        if isinstance(steps := run.recipe.macros.get(macro), int):
            return f" --gin.{macro}={2 * steps}"
    return ""


def commands_text(lines: Iterable[str]) -> str:
    return f"<pre>{escape(chr(10).join(lines))}</pre>"
