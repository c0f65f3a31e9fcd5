"""Finds the checkpoints of a run: `checkpoint_<step>` folders, on this machine or in a bucket."""

import re
from pathlib import Path

from limba.checkpoint_files import classic_format
from limba.files import storage, untrusted_json
from limba.files.storage import AnyPath

PREFIX = "checkpoint"
# T5X's marker file of a checkpoint that is never removed.
PINNED = "PINNED"
# The folder of the checkpoints in an output folder of `limba run`.
_OF_LIMBA_RUN = "run"
# What `limba run` writes beside it, as transformers does.
_STATE_OF_LIMBA_RUN = "trainer_state.json"
# As Limba and T5X write it: no leading zeros, digits of ASCII only, not more of them than a step can have.
_NAME = re.compile(rf"{PREFIX}_(0|[1-9][0-9]{{0,17}})")
# Orbax's last file. It marks a finished checkpoint in a bucket, where files cannot be renamed.
# Beside the checkpoints of a run that has none yet (limba/training/kept_values.py).
START_VALUES = "start_values.npz"
_COMMITTED = "commit_success.txt"


def checkpoint_steps(model_dir: str | AnyPath) -> list[int]:
    """Steps of the finished checkpoints in a run's directory, ascending."""
    directory = storage.as_path(model_dir)
    matches = (_NAME.fullmatch(name) for name in storage.list_names(directory))
    steps = sorted(int(match[1]) for match in matches if match)
    if not storage.is_remote(directory):
        steps = [step for step in steps if storage.is_dir(checkpoint_path(directory, step))]
    else:
        last_files = {_COMMITTED, classic_format.INDEX}
        steps = [step for step in steps if last_files & {*storage.list_names(checkpoint_path(directory, step))}]
    return steps


def checkpoint_path(model_dir: str | AnyPath, step: int) -> AnyPath:
    return storage.as_path(model_dir) / f"{PREFIX}_{step}"


def is_checkpoint(path: AnyPath) -> bool:
    """Whether a directory is a checkpoint, and not a run's directory."""
    return storage.is_dir(path / "state") or classic_format.is_classic(path)


def given_directory(path: str | AnyPath) -> AnyPath:
    """The directory that a path means: the path, or the classic checkpoint whose index file it is, as in T5X."""
    path = storage.as_path(path)
    is_index = path.name == classic_format.INDEX and storage.is_file(path)
    return path.parent if is_index else path


def run_directory(path: str | AnyPath) -> AnyPath:
    """The directory with the checkpoints of the run at a path: the path itself, or its `run/`.

    An output folder of `limba run` has them there; it is a Hugging Face folder too.
    """
    path = storage.as_path(path)
    if is_checkpoint(path) or checkpoint_steps(path) or not checkpoint_steps(path / _OF_LIMBA_RUN):
        return path
    return path / _OF_LIMBA_RUN


def has_checkpoint(path: str | AnyPath) -> bool:
    """Whether `find_checkpoint` finds one."""
    path = run_directory(path)
    return is_checkpoint(path) or bool(checkpoint_steps(path))


def find_checkpoint(path: str | AnyPath) -> AnyPath:
    """The checkpoint at a path: the path itself, or the newest one of a run's directory or output folder.

    Of an output folder whose model is the best one, as `load_best_model_at_end` asks, it is that. The index file of a
    classic checkpoint means that checkpoint.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if trainer_state.json of an output folder is damaged.
    """
    path = given_directory(path)
    if is_checkpoint(path):
        return path
    best = _best_step(path) if run_directory(path) != path else None
    found = all_checkpoints(path)
    return next((x for x in found if x.name == f"{PREFIX}_{best}"), found[-1])


def _best_step(output_folder: AnyPath) -> int | None:
    file = output_folder / _STATE_OF_LIMBA_RUN
    if isinstance(file, Path) and file.is_file():
        return untrusted_json.read_object(file).get("best_global_step")
    return None


def all_checkpoints(path: str | AnyPath) -> list[AnyPath]:
    """Every finished checkpoint of a run's directory or output folder, ascending.

    Raises:
      FileNotFoundError: if there is none.
    """
    path = run_directory(path)
    found = [checkpoint_path(path, step) for step in checkpoint_steps(path)]
    if not found:
        if storage.is_file(path / "config.json") and not storage.is_dir(path / "run"):
            raise FileNotFoundError(
                f"{path} is a Hugging Face folder, not a run: make a run of it with `limba convert from-hf {path} "
                "runs/NAME`, and give that."
            )
        what = "is a file" if storage.is_file(path) else "does not exist"
        if storage.is_dir(path):
            what = "holds no checkpoint_<step> directory"
        raise FileNotFoundError(f"No checkpoint at {path}: it {what}. Give a run's directory or one checkpoint of it.")
    return found
