"""All that a run's folder says of it, read once for a page."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from limba.addons.pages import run_curves, run_state
from limba.addons.pages.run_curves import Curves
from limba.files import json_text, storage
from limba.files.storage import AnyPath
from limba.gin_config.recipe import Recipe
from limba.network import flops
from limba.reports import goodput, json_lines, writers
from limba.training import first_rows

_SPIKES = "spikes.jsonl"
_PREDICTIONS = "inference_eval"
_FILE_OF_STEP = re.compile(r"(?P<task>.+?)-(?P<step>\d{6,})\.jsonl")
# Of a task's predictions, what a page shows: examples, and evaluations spread over the run.
_MOST_EXAMPLES, _MOST_EVALUATIONS = 5, 6
# Forward, and twice as much backward.
_PASSES = 3
AXES = ("steps", "tokens", "hours", "FLOPs")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a run has predicted for one example.

    Attributes:
      outputs: by step.
    """

    text: str
    target: str
    outputs: Mapping[int, str]


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """A run's folder.

    Attributes:
      name: for legends; differs from those of the other runs of the page.
      damaged: how many lines of metrics.jsonl cannot be read.
      gin: config.gin; "" without one.
      info: run.json of the newest checkpoint; {} without one.
      pace: `[lines, 2]` of goodput.jsonl: a step, and the hours of the run's starts until then.
      predictions: by task.
      first_rows: `first_rows.json`; {} without one.
    """

    name: str
    folder: AnyPath
    curves: Mapping[str, Curves]
    damaged: int
    gin: str
    recipe: Recipe
    info: Mapping[str, Any]
    state: str
    reason: str
    total_steps: int | None
    attempts: Sequence[goodput.Attempt]
    pace: np.ndarray
    spikes: Sequence[json_lines.Record]
    predictions: Mapping[str, Sequence[Prediction]]
    first_rows: Mapping[str, Any]

    @property
    def step(self) -> int:
        """The newest step with metrics."""
        return max(int(curves.steps[-1]) for curves in self.curves.values())

    @property
    def initial_step(self) -> int:
        found = self.info.get("initial_step")
        return found if type(found) is int and 0 <= found < 2**63 else 0

    @property
    def task(self) -> str | None:
        return run_state.task_of(self.recipe, dict(self.info))

    @property
    def tokens_per_step(self) -> float | None:
        """Input and target positions of a batch, padding included, as the run's `timing/tokens_per_second` counts."""
        train = self.curves.get(run_curves.TRAIN)
        if train is not None and train.known(run_curves.TOKENS_PER_SECOND) and train.known("timing/steps_per_second"):
            rates = train.columns[run_curves.TOKENS_PER_SECOND] / train.columns["timing/steps_per_second"]
            return float(np.nanmedian(rates))
        lengths, batch = self.info.get("feature_lengths"), self.info.get("batch_size")
        if not isinstance(lengths, dict) or "inputs" not in lengths:
            return None
        counts = [batch, lengths["inputs"], lengths.get("targets", 0)]
        if not all(type(x) is int and 0 <= x < 2**31 for x in counts):
            return None
        return float(counts[0] * sum(counts[1:]))

    @property
    def flops_per_step(self) -> float | None:
        """Of the products of a T5's matrices, as `limba plan` counts; None for other networks."""
        lengths, batch = self.info.get("feature_lengths"), self.info.get("batch_size")
        if self.info.get("network_class") != "T5Config" or not isinstance(batch, int) or not isinstance(lengths, dict):
            return None
        try:
            return _PASSES * batch * flops.forward_flops(self.info["network"], lengths["inputs"], lengths["targets"])
        except (AttributeError, KeyError, OverflowError, TypeError):  # A record may come from somebody else.
            return None

    def hours_at(self, steps: np.ndarray) -> np.ndarray | None:
        """Hours of the run's starts together until some steps; None where they are not known."""
        if len(self.pace) < 2:
            return None
        return np.interp(steps, self.pace[:, 0], self.pace[:, 1])

    def along(self, axis: str, steps: np.ndarray) -> np.ndarray | None:
        """Steps as places on an axis of `AXES`; None if the run does not know it."""
        made = steps.astype(float) - self.initial_step
        match axis:
            case "tokens":
                return None if self.tokens_per_step is None else made * self.tokens_per_step
            case "hours":
                return self.hours_at(steps)
            case "FLOPs":
                return None if self.flops_per_step is None else made * self.flops_per_step
        return steps.astype(float)


def load(run: AnyPath, name: str) -> RunRecord:
    """Reads a run.

    Raises:
      FileNotFoundError: if the folder is no run, or has no metrics yet.
      ValueError: if its config.gin is a link that leads out of it: the page has its text.
    """
    if not storage.is_file(run / writers.METRICS_FILE) and storage.is_file(run / "run" / writers.METRICS_FILE):
        run = run / "run"  # an output folder of `limba run`
    if not storage.is_file(run / writers.METRICS_FILE):
        raise FileNotFoundError(
            f"{run} has no {writers.METRICS_FILE}: name the folder of a run (MODEL_DIR; of `limba run` output_dir)."
        )
    curves, damaged = run_curves.read(run)
    if not curves:
        other = f" ({damaged} lines of {writers.METRICS_FILE} are damaged)" if damaged else ""
        raise FileNotFoundError(f"{run} has no metrics yet{other}: wait for the first, or check train.stats_period.")
    if (train := curves.get(run_curves.TRAIN)) is not None:
        curves[run_curves.TRAIN] = run_curves.with_parameters(train)
    for dataset in [name for name in curves if name.startswith(run_curves.TEACHER_FORCED)]:
        curves[dataset] = run_curves.with_baselines(curves[dataset])
    recipe, info = run_state.recipe_of(run), run_state.info_of(run)
    total = run_state.total_steps(recipe, info)
    gin = run / run_state.GIN
    storage.check_stays(gin)
    state, reason = run_state.state_of(run, max(int(x.steps[-1]) for x in curves.values()), total)
    lines = json_lines.read(run / goodput.FILE_NAME, goodput.is_record)
    return RunRecord(
        name=name,
        folder=run,
        curves=curves,
        damaged=damaged,
        gin=storage.read_bytes(gin).decode(errors="replace") if storage.is_file(gin) else "",
        recipe=recipe,
        info=info,
        state=state,
        reason=reason,
        total_steps=total,
        attempts=goodput.attempts_of(lines),
        pace=_pace(lines),
        spikes=json_lines.read(run / _SPIKES, lambda line: json_lines.is_number(line.get("step"))),
        predictions=_predictions(run / _PREDICTIONS),
        first_rows=first_rows.read(run),
    )


def _pace(lines: Sequence[json_lines.Record]) -> np.ndarray:
    """Steps and hours, both rising. A restart takes hours; steps that are made again count where they are last."""
    points: list[tuple[float, float]] = []
    before, this, began = 0.0, 0.0, None
    for line in lines:
        if line["began"] != began:
            before, began = before + this, line["began"]
            while points and points[-1][0] > line["step"]:
                points.pop()
        this = max(0.0, line["time"] - line["began"]) / 3600
        points.append((line["step"], before + this))
    return np.array(points, float).reshape(-1, 2)


def _predictions(folder: AnyPath) -> dict[str, list[Prediction]]:
    files: dict[str, list[tuple[int, AnyPath]]] = {}
    for name in storage.list_names(folder):
        if (found := _FILE_OF_STEP.fullmatch(name)) and not found["task"].endswith("-pairs"):
            files.setdefault(found["task"], []).append((int(found["step"]), folder / name))
    return {task: shown for task, found in files.items() if (shown := _examples(sorted(found)))}


def _examples(files: Sequence[tuple[int, AnyPath]]) -> list[Prediction]:
    """The first examples of a task, with outputs from the first to the last evaluation."""
    kept = sorted({round(x) for x in np.linspace(0, len(files) - 1, min(len(files), _MOST_EVALUATIONS))})
    texts: list[tuple[str, str]] = []
    outputs: list[dict[int, str]] = []
    for step, file in (files[i] for i in kept):
        rows = json_lines.parsed(itertools.islice(json_lines.lines(file), _MOST_EXAMPLES), _is_prediction)
        for number, row in enumerate(row for _, row in rows if row is not None):
            if number == len(texts):
                texts.append((_text(row, "inputs_pretokenized", "inputs"), _target(row)))
                outputs.append({})
            outputs[number][step] = _as_text(row.get("output", row.get("prediction")))
    return [Prediction(*text, outputs=of_steps) for text, of_steps in zip(texts, outputs, strict=True)]


def _is_prediction(line: json_lines.Record) -> bool:
    return isinstance(line.get("input"), dict) and ("output" in line or "prediction" in line)


def _text(row: json_lines.Record, *names: str) -> str:
    return next((_as_text(row["input"][name]) for name in names if name in row["input"]), "")


def _target(row: json_lines.Record) -> str:
    return _text(row, "targets_pretokenized") or _as_text(row.get("target", ""))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json_text.dumps(value, ensure_ascii=False)
