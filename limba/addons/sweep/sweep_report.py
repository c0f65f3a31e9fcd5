"""The results of a sweep: a table, a picture, and the best checkpoint."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from limba.addons.sweep.sweep_file import Sweep
from limba.addons.sweep.trial_folders import Trial
from limba.checkpoint_files.directories import PINNED, checkpoint_path
from limba.files import storage, untrusted_files, written_files
from limba.reports import text_width, writers

# An axis with larger values has no length that is a number.
_MOST_DRAWN = 1e100


def best_trial(sweep: Sweep, trials: Sequence[Trial]) -> Trial | None:
    """The best finished trial; of several, the first."""
    done = [trial for trial in trials if trial.status == "done" and trial.value is not None]
    return (max if sweep.maximize else min)(done, key=lambda trial: trial.value or 0.0) if done else None


def table(sweep: Sweep, trials: Sequence[Trial]) -> str:
    """One line for each trial: the best first, those without a result last. Of the parameters it has what varies."""
    varying, _ = _parameter_names(sweep, trials)
    rows = [["trial", *varying, sweep.metric, "step", "seconds", "status"]]
    for trial in _ranked(sweep, trials):
        value = "" if trial.value is None else f"{trial.value:.6g}"
        step = "" if trial.step is None else str(trial.step)
        shown = [_shown(trial.parameters.get(name)) for name in varying]
        status = f"failed ({trial.error})" if trial.status == "failed" else trial.status
        rows.append([str(trial.number), *shown, value, step, f"{trial.seconds:.0f}", status])
    widths = [max(text_width.width(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    padded = [[*map(text_width.ljust, row[:-1], widths), row[-1]] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in padded)


def remark(sweep: Sweep, trials: Sequence[Trial]) -> str:
    """A sentence about trials that do not compare, because their evaluations had other targets; "" if none."""
    if sweep.metric.endswith("nats_per_character"):
        return ""
    groups: dict[tuple[float | None, ...], list[str]] = {}
    for trial in trials:
        if trial.status == "done" and (targets := _targets(trial, sweep.metric)):
            groups.setdefault(targets, []).append(str(trial.number))
    named = "; ".join(f"trial {', '.join(numbers)}: {size or 0:,.0f} tokens" for (size, _), numbers in groups.items())
    said = f"The trials were evaluated on different targets, so their {sweep.metric} does not compare ({named})."
    return said if len(groups) > 1 else ""


def _targets(trial: Trial, metric: str) -> tuple[float | None, ...]:
    """What tells the targets of a trial's evaluation from others: their number, and the loss of their unigrams."""
    lines = [x for x in writers.read_metrics(trial.model_dir, "training_eval/") if x["step"] == trial.step]
    lines = [x for x in lines if metric.startswith(f"{x['dataset']}/")] or lines
    if len(lines) != 1 or "num_target_tokens" not in lines[0]:
        return ()
    return lines[0]["num_target_tokens"], lines[0].get("unigram_nats_per_target_token")


def _parameter_names(sweep: Sweep, trials: Sequence[Trial]) -> tuple[list[str], list[str]]:
    """The parameters with several values, and those with one."""
    varying: list[str] = []
    fixed: list[str] = []
    for parameter in sweep.parameters:
        values = [*parameter.values, *(trial.parameters.get(parameter.name) for trial in trials)]
        is_fixed = bool(parameter.values) and all(value == values[0] for value in values)
        (fixed if is_fixed else varying).append(parameter.name)
    return varying, fixed


def _ranked(sweep: Sweep, trials: Sequence[Trial]) -> list[Trial]:
    sign = -1.0 if sweep.maximize else 1.0
    return sorted(trials, key=lambda t: (t.value is None, sign * (t.value or 0.0), t.number))


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write(sweep: Sweep, trials: Sequence[Trial], folder: Path) -> list[Path]:
    """Writes results.txt, results.csv, and, of more than one result, results.png; returns them."""
    written = [folder / "results.txt", folder / "results.csv"]
    lines = [table(sweep, trials), remark(sweep, trials)]
    storage.replace_text(written[0], "".join(f"{line}\n" for line in lines if line))
    varying, fixed = _parameter_names(sweep, trials)
    names = [*varying, *fixed]
    content = io.StringIO()
    rows = csv.writer(content)
    rows.writerow(["trial", sweep.metric, *names, "step", "seconds", "status", "error"])
    for t in trials:
        values = [t.parameters.get(name) for name in names]
        cells = [t.number, t.value, *values, t.step, round(t.seconds, 1), t.status, t.error]
        rows.writerow(map(untrusted_files.cell, cells))
    storage.replace_text(written[1], content.getvalue())
    done = [t for t in trials if t.status == "done" and t.value is not None]
    points = [(float(t.number), t.value) for t in done if t.value is not None and abs(t.value) < _MOST_DRAWN]
    if len(points) > 1:
        from limba.reports import loss_picture

        best, so_far = [], points[0][1]
        for number, value in points:
            so_far = max(so_far, value) if sweep.maximize else min(so_far, value)
            best.append((number, so_far))
        goal = "highest" if sweep.maximize else "lowest"
        curves = [("trials", points), (f"{goal} so far", best)]
        if picture := loss_picture.draw(curves, "trial", sweep.metric, dots=("trials",)):
            written.append(folder / "results.png")
            storage.write_bytes(written[-1], picture)
    return written


def keep_best(sweep: Sweep, trials: Sequence[Trial], folder: Path) -> Path | None:
    """Pins the best trial's best checkpoint, so that training keeps it, and exports it to `folder/best`.

    Returns the checkpoint; None if there is none. Raises ValueError as `to_hf` does, and for links of somebody else.
    """
    best = best_trial(sweep, trials)
    if best is None or best.step is None:
        return None
    checkpoint = checkpoint_path(best.model_dir, best.step)
    if not Path(checkpoint).is_dir():
        return None
    written_files.make_folder(folder, Path(checkpoint).relative_to(folder))
    written_files.refuse_link(folder / "best")
    storage.write_bytes(Path(checkpoint) / PINNED, b"")
    from limba.convert import to_hf

    to_hf.to_hf(checkpoint, folder / "best", formats=("safetensors",), overwrite=True)
    return Path(checkpoint)
