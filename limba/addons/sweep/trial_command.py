"""The command line of a trial."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.addons.sweep import own_command
from limba.addons.sweep.sweep_file import Sweep
from limba.files import python_path
from limba.gin_config.gin_files import REPOSITORY

_LIMBA = [sys.executable, "-m", "limba"]


def trial_command(sweep: Sweep, parameters: Mapping[str, Any], folder: Path, *, on_wandb: bool = False) -> list[str]:
    """The command line of a trial. Its MODEL_DIR is `folder/run`; `on_wandb`, it also writes to W&B."""
    if sweep.command:
        return own_command.words_of(sweep.program, sweep.command, parameters, folder)
    program, *config = sweep.program.split(maxsplit=1)
    if program == "run":
        given = {
            own_command.key_of_run(name): value for name, value in parameters.items() if not own_command.is_place(name)
        }
        flags = [f"--{name}={own_command.flag(value)}" for name, value in given.items()]
        tracker = ["--report_to=wandb"] if on_wandb else []
        return [*_LIMBA, "run", *config, *sweep.script_flags, f"--output_dir={folder}", *flags, *tracker]
    recipe, *options = train_flags(sweep, parameters, folder, on_wandb=on_wandb)
    if sweep.slurm is None:
        return [*_LIMBA, "train", recipe, *options]
    job = f"limba-{sweep.name}-{folder.name}"
    # A job of the same name, submitted by a `limba sweep` that was killed, runs first; then nothing is left to train.
    submit = ["sbatch", "--wait", f"--job-name={job}", "--dependency=singleton", *sweep.slurm]
    return [*submit, "launch/slurm.sbatch", sweep.gin_files[0], *options]


def train_flags(sweep: Sweep, parameters: Mapping[str, Any], folder: Path, *, on_wandb: bool = False) -> list[str]:
    """The flags of `limba train`, of which the recipe is the first."""
    return [
        *(f"--gin_file={file}" for file in [*sweep.gin_files, *(["gin/runs/wandb.gin"] if on_wandb else [])]),
        *(f"--gin_bindings={binding}" for binding in sweep.gin_bindings),
        *(own_command.gin_flag(name, value) for name, value in parameters.items()),
        f"--gin.MODEL_DIR={str(folder / 'run')!r}",
    ]


def working_directory(sweep: Sweep) -> Path:
    """The working directory of trials: launch/slurm.sbatch is submitted from the repository."""
    return Path.cwd() if sweep.slurm is None else REPOSITORY


def environment(sweep: Sweep, device: str | None) -> dict[str, str]:
    """The environment of a trial's process; the sweep is its W&B group."""
    # A command of the user's own finds its modules as Python does.
    env = {**(python_path.environment_of_users() if sweep.command else os.environ), "WANDB_RUN_GROUP": sweep.name}
    if sweep.project:
        env["WANDB_PROJECT"] = sweep.project
    if device is not None:
        env["CUDA_VISIBLE_DEVICES"] = device
    return env
