"""The command line of a trial."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.gin_utils import REPOSITORY
from limba.sweep_file import Sweep

_LIMBA = [sys.executable, "-m", "limba"]


def trial_command(sweep: Sweep, parameters: Mapping[str, Any], folder: Path, *, on_wandb: bool = False) -> list[str]:
    """How a trial is called.

    Args:
      sweep: the file.
      parameters: the trial's values.
      folder: of the trial; its MODEL_DIR is `folder/run`.
      on_wandb: write to W&B too.
    """
    if sweep.command:
        return _own_command(sweep, parameters, folder)
    if sweep.program.startswith("run "):
        flags = [f"--{name}={_flag(value)}" for name, value in parameters.items()]
        tracker = ["--report_to=wandb"] if on_wandb else []
        return [*_LIMBA, "run", sweep.program.removeprefix("run "), f"--output_dir={folder}", *flags, *tracker]
    recipe, *more = sweep.gin_files
    options = [
        *(f"--gin_file={file}" for file in [*more, *(["gin/runs/wandb.gin"] if on_wandb else [])]),
        *(f"--gin_bindings={binding}" for binding in sweep.gin_bindings),
        *(f"--gin.{name}={gin_literal(value)}" for name, value in parameters.items()),
        f"--gin.MODEL_DIR={str(folder / 'run')!r}",
    ]
    if sweep.slurm is None:
        return [*_LIMBA, "train", f"--gin_file={recipe}", *options]
    job = f"limba-{sweep.name}-{folder.name}"
    # A job of this name that a lost `limba sweep` submitted comes first; then there is nothing left to train.
    submit = ["sbatch", "--wait", f"--job-name={job}", "--dependency=singleton", *sweep.slurm]
    return [*submit, "launch/slurm.sbatch", recipe, *options]


def working_directory(sweep: Sweep) -> Path:
    """Where trials are called: launch/slurm.sbatch is submitted from the repository."""
    return Path.cwd() if sweep.slurm is None else REPOSITORY


def environment(sweep: Sweep, device: str | None) -> dict[str, str]:
    """Of a trial's process: W&B's group is the sweep."""
    env = {**os.environ, "WANDB_RUN_GROUP": sweep.name}
    if sweep.project:
        env["WANDB_PROJECT"] = sweep.project
    if device is not None:
        env["CUDA_VISIBLE_DEVICES"] = device
    return env


def gin_literal(value: Any) -> str:
    """A value as gin reads it. Texts get their quotes, but references (`@…`) and macros (`%…`)."""
    return value if isinstance(value, str) and value.startswith(("@", "%")) else repr(value)


def _flag(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _own_command(sweep: Sweep, parameters: Mapping[str, Any], folder: Path) -> list[str]:
    """W&B's macros, and two of ours: `${gin_args}` and `${trial_dir}`."""
    several = {
        "${env}": [],
        "${interpreter}": [sys.executable],
        "${program}": [sweep.program],
        "${args}": [f"--{name}={_flag(value)}" for name, value in parameters.items()],
        "${args_no_hyphens}": [f"{name}={_flag(value)}" for name, value in parameters.items()],
        "${args_json}": [json.dumps(dict(parameters))],
        "${gin_args}": [f"--gin.{name}={gin_literal(value)}" for name, value in parameters.items()],
    }
    words: list[str] = []
    for word in sweep.command:
        words += several.get(word, [word.replace("${trial_dir}", str(folder))])
    return words
