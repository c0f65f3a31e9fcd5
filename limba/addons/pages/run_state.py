"""How a run is: its step, losses and speed, and whether it runs, from the files that it writes."""

import contextlib
import dataclasses
import time
from pathlib import Path
from typing import Any

from limba.addons.pages import run_curves
from limba.checkpoint_files import directories, run_folder
from limba.files import storage
from limba.files.storage import AnyPath
from limba.gin_config.recipe import Recipe
from limba.reports import goodput, run_end, run_lock, text_figures, writers

RUNNING, FINISHED, FAILED, STOPPED, KILLED = "running", "finished", "failed", "stopped", "killed"
# Files by which a folder is known as a run's.
_SIGNS = (writers.METRICS_FILE, run_lock.FILE_NAME, run_end.FILE_NAME)
# The configuration that a run writes at each start.
GIN = run_folder.GIN


@dataclasses.dataclass(frozen=True)
class RunState:
    """A run at a moment; None for what is not known.

    Attributes:
      state: "running", "finished", "failed", "stopped" on request, or "killed": its process ended without a word.
      reason: why it failed; "" otherwise.
      loss, validation_loss: of a target token, the newest.
      validation_text_loss: the headline of docs/evaluate.md: of tokens of text, in nats, among tokens of text.
      age_seconds: since the last sign of life.
    """

    folder: str
    state: str
    reason: str
    step: int | None
    total_steps: int | None
    loss: float | None
    validation_loss: float | None
    validation_text_loss: float | None
    tokens_per_second: float | None
    age_seconds: float | None


def is_run(folder: AnyPath) -> bool:
    return any(storage.is_file(folder / name) for name in _SIGNS)


def look(run: Path, name: str) -> RunState:
    """The state of a run in a folder of this machine; `name` is what it is called in the table."""
    recipe, info = recipe_of(run), info_of(run)
    lines = run_curves.newest_lines(run, task_of(recipe, info))
    train, validation = lines.get(run_curves.TRAIN, {}), lines.get("validation", {})
    steps = [line["step"] for line in (train, validation) if line]
    steps += [max(attempt.step_seconds, default=0) for attempt in goodput.read_attempts(run)[-1:]]
    step = max([*steps, *directories.checkpoint_steps(run)[-1:]], default=None)
    total = total_steps(recipe, info)
    state, reason = state_of(run, step, total)
    times = [file.stat().st_mtime for sign in (*_SIGNS, goodput.FILE_NAME) if (file := run / sign).is_file()]
    return RunState(
        folder=name,
        state=state,
        reason=reason,
        step=step,
        total_steps=total,
        loss=run_curves.loss_of(train, ("loss", *run_curves.LOSSES)),
        validation_loss=run_curves.loss_of(validation),
        validation_text_loss=text_figures.headline(validation),
        tokens_per_second=train.get(run_curves.TOKENS_PER_SECOND),
        age_seconds=max(0.0, time.time() - max(times)) if times else None,
    )


def state_of(run: AnyPath, step: int | None, total: int | None) -> tuple[str, str]:
    """The state, and the reason of a failure."""
    if run_lock.is_held(run):
        return RUNNING, ""
    end = run_end.read(run)
    if end is not None and end["kind"] == run_end.FAILED:
        return FAILED, end["reason"]
    if step is not None and total is not None and step >= total:
        return FINISHED, ""
    # One that was asked to stop while a library had its thread leaves its lock, too.
    return (KILLED if end is None and storage.is_file(run / run_lock.FILE_NAME) else STOPPED), ""


def recipe_of(run: AnyPath) -> Recipe:
    """The configuration of the newest start; an empty one where there is none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        return Recipe.parse(storage.read_bytes(run / GIN).decode(), GIN)
    return Recipe(())


def info_of(run: AnyPath) -> dict[str, Any]:
    """`run.json` of the newest checkpoint; empty without one that can be read."""
    with contextlib.suppress(OSError, KeyError, ValueError):
        return run_folder.load_run_info(run)
    return {}


def task_of(recipe: Recipe, info: dict[str, Any]) -> str | None:
    """The task that the run is evaluated on."""
    task = recipe.macros.get("MIXTURE_OR_TASK_NAME", info.get("task"))
    return task if isinstance(task, str) else None


def total_steps(recipe: Recipe, info: dict[str, Any]) -> int | None:
    """The step to end at. The newest start decides; steps and epochs after a checkpoint are counted when it starts."""
    bound = recipe.parameters("train")
    total = bound.get("total_steps")
    if isinstance(total, int) and bound.get("relative_steps") is None and bound.get("epochs") is None:
        return total
    recorded = info.get("total_steps")
    return recorded if isinstance(recorded, int) else None


def time_of_day() -> str:
    """Now, for people."""
    return time.strftime("%Y-%m-%d %H:%M %Z")
