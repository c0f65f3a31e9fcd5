"""A branch of a run: its state at a step, as a run of its own whose learning rate decays.

OUT/checkpoint_<step>/   the parent's checkpoint: parameters, optimizer state, position in the data, seeds
OUT/branch.gin           the parent's configuration, and what the branch binds
OUT/branch.json          the parent: path, step, digest of its tensors; and the decay
OUT/metrics.jsonl        the parent's, up to that step
"""

import dataclasses
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons.derived_runs import source_run
from limba.checkpoint_files import run_folder, state_checksums
from limba.checkpoint_files.directories import checkpoint_path
from limba.files import json_text, storage
from limba.files.output_folder import fingerprint
from limba.files.storage import AnyPath
from limba.gin_config.recipe import Binding, Recipe, Reference
from limba.reports import json_lines, writers

GIN, RECORD = "branch.gin", "branch.json"
_SCHEDULES = "from limba.optimizers import schedules"
# Beside the metrics, of use to a branch: n-grams that were counted.
_KEPT = ("baselines.json",)
_LINKED_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Branch:
    """What a branch is made of.

    Attributes:
      parent: the checkpoint.
      step: of it.
      decay_steps: steps of the branch.
      decay_type: of `schedules.with_decay`.
      bindings: further ones of the user's.
    """

    parent: AnyPath
    step: int
    decay_steps: int
    decay_type: str
    bindings: Sequence[str] = ()

    @property
    def total_steps(self) -> int:
        return self.step + self.decay_steps

    def record(self) -> dict[str, Any]:
        """The content of `branch.json`."""
        return {
            "parent": str(self.parent.parent),
            "step": self.step,
            "digest": digest(self.parent),
            "decay_steps": self.decay_steps,
            "decay_type": self.decay_type,
            "total_steps": self.total_steps,
            "bindings": list(self.bindings),
        }


def find_parent(run: str, step: int) -> AnyPath:
    """The checkpoint of a run at a step.

    Raises:
      FileNotFoundError: if it is no run, has no such checkpoint, or it is not Limba's.
    """
    home, steps = source_run.find(run)
    if step not in steps:
        raise FileNotFoundError(
            f"--at {step}: {home} has checkpoints of the steps {', '.join(map(str, steps))}. A file PINNED in a "
            "checkpoint keeps it (docs/checkpoints.md)."
        )
    path = checkpoint_path(home, step)
    run_folder.load_run_info(path)  # raises for T5X's
    return path


def steps_of(decay: str, step: int) -> int:
    """`10%` of a step, or a number of steps.

    Raises:
      ValueError: for anything else, or less than one step.
    """
    number = decay.removesuffix("%").strip()
    try:
        steps = round(step * float(number) / 100) if decay.endswith("%") else int(number)
    except (ValueError, OverflowError):
        raise ValueError(f"--decay is {decay!r}; give a share of the steps until then, 10%, or steps, 500.") from None
    if steps < 1:
        raise ValueError(f"--decay {decay} of step {step} makes {steps} steps; a decay has at least one.")
    return steps


def digest(checkpoint: AnyPath) -> str:
    """SHA-256 of the checksums of all tensors; of an old checkpoint without them, of its files' names and times."""
    file = checkpoint / run_folder.FOLDER / state_checksums.FILE_NAME
    if not storage.is_file(file):
        return fingerprint(checkpoint)
    return hashlib.sha256(storage.read_bytes(file)).hexdigest()


def gin_text(branch: Branch, out: Path, own: str) -> str:
    """The gin file of a branch: the parent's, and what the branch binds behind it.

    Args:
      own: the parent's config.gin.

    Raises:
      ValueError: if it does not say how long or at which rate the parent trains, or the parent is a branch itself.
    """
    file = f"{branch.parent}/{run_folder.FOLDER}/{run_folder.GIN}"
    recipe = Recipe.parse(own, file)
    train = _names(recipe, "train")
    missing = [name for name in ("total_steps", "model_dir") if name not in train]
    rate = _learning_rate(recipe)
    if missing or rate is None:
        what = f"train.{missing[0]}" if missing else "the trainer's learning_rate_fn"
        raise ValueError(f"{file} does not bind {what}: it is not the configuration of a training.")
    schedule = str(rate.value)
    if "schedules.with_decay" in schedule:
        raise ValueError(
            f"{branch.parent.parent} is a branch itself, whose rate decays; give the run that it comes from."
        )
    changed: list[Binding] = [Binding(train["model_dir"].name, str(out))]
    if "MODEL_DIR" in recipe.macros:
        changed.append(Binding("MODEL_DIR", str(out)))
    # TRAIN_STEPS stays: schedules and stages of the parent count with it.
    changed.append(Binding(train["total_steps"].name, branch.total_steps))
    changed += [Binding(train[name].name, None) for name in ("relative_steps", "epochs") if name in train]
    changed.append(Binding(rate.name, Reference("@schedules.with_decay()")))
    decay = {
        "learning_rate_fn": Reference(schedule),
        "begin": branch.step,
        "decay_steps": branch.decay_steps,
        "decay_type": branch.decay_type,
        "final_learning_rate": 0.0,
    }
    changed += [Binding(f"schedules.with_decay.{name}", value) for name, value in decay.items()]
    imports = [] if _SCHEDULES in recipe.statements else [_SCHEDULES]
    lines = [
        f"# A branch of {branch.parent.parent} at step {branch.step}; its rate falls in {branch.decay_steps} steps.",
        "# `limba train` with this file trains it, and resumes it. What the branch binds is at the end.",
        own.rstrip("\n"),
        "",
        "# ---------------------------------------------- the branch ----------------------------------------------",
        *imports,
        *map(str, changed),
        *branch.bindings,
    ]
    text = "\n".join(lines) + "\n"
    Recipe.parse(text, "--set")
    return text


def _names(recipe: Recipe, function: str) -> dict[str, Binding]:
    """The last binding of each parameter of a function."""
    return {x.parameter: x for x in recipe.bindings if x.function == function}


def _learning_rate(recipe: Recipe) -> Binding | None:
    """The binding of the schedule of the trainer that `train()` makes."""
    trainer = recipe.parameters("train").get("trainer_cls")
    name = trainer.lstrip("@").removesuffix("()").rpartition(".")[2] if isinstance(trainer, Reference) else "Trainer"
    return _names(recipe, name).get("learning_rate_fn")


def write(branch: Branch, folder: Path, gin: str, record: Mapping[str, Any]) -> None:
    """Writes the folder of a branch; large files of the checkpoint are hard links where the disk allows it.

    Raises:
      ValueError: if a file that a branch takes is a link that leads out of its folder.
    """
    home = branch.parent.parent
    kept = [home / name for name in _KEPT if storage.is_file(home / name)]
    names = storage.list_files(branch.parent)
    for file in (*kept, *(branch.parent / name for name in names)):
        storage.check_stays(file)
    for name in names:
        _take(branch.parent / name, folder / branch.parent.name / name)
    lines = [line for line in writers.read_metrics(home) if line["step"] <= branch.step]
    (folder / writers.METRICS_FILE).write_text("".join(map(json_lines.to_line, lines)), "utf-8")
    for file in kept:
        _take(file, folder / file.name)
    (folder / GIN).write_text(gin, "utf-8")
    (folder / RECORD).write_text(json_text.dumps(record, indent=1) + "\n", "utf-8")


def _take(source: AnyPath, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.unlink(missing_ok=True)  # of an attempt that was killed
    if storage.is_remote(source):
        to.write_bytes(storage.read_bytes(source))
        return
    path = Path(source)
    if path.stat().st_size >= _LINKED_BYTES:  # Files of a checkpoint are never changed, only removed.
        try:
            os.link(path, to)
            return
        except OSError:  # another disk, or one without links
            pass
    shutil.copy2(path, to)
