"""Where the checkpoints of a run are: `checkpoint_<step>` folders, of this machine or in a bucket."""

import re

from limba import classic_checkpoints, storage
from limba.storage import AnyPath

PREFIX = "checkpoint"
# T5X's mark of a checkpoint that stays.
PINNED = "PINNED"
# Orbax writes it last; in a bucket, which knows no renaming, it tells a finished checkpoint.
_COMMITTED = "commit_success.txt"


def checkpoint_steps(model_dir: str | AnyPath) -> list[int]:
    """Steps of the finished checkpoints in a run's directory, ascending."""
    directory = storage.as_path(model_dir)
    matches = (re.fullmatch(rf"{PREFIX}_(\d+)", name) for name in storage.list_names(directory))
    steps = sorted(int(match[1]) for match in matches if match)
    if storage.is_remote(directory):
        steps = [step for step in steps if _is_finished(checkpoint_path(directory, step))]
    return steps


def checkpoint_path(model_dir: str | AnyPath, step: int) -> AnyPath:
    return storage.as_path(model_dir) / f"{PREFIX}_{step}"


def is_checkpoint(path: AnyPath) -> bool:
    """Whether a directory is one checkpoint, rather than a run's."""
    return storage.is_dir(path / "state") or classic_checkpoints.is_classic(path)


def _is_finished(path: AnyPath) -> bool:
    return bool({_COMMITTED, classic_checkpoints.INDEX} & set(storage.list_names(path)))


def find_checkpoint(path: str | AnyPath) -> AnyPath:
    """The checkpoint that a path means: itself, or the newest one of a run's directory.

    Raises:
      FileNotFoundError: if there is none.
    """
    path = storage.as_path(path)
    if is_checkpoint(path):
        return path
    steps = checkpoint_steps(path)
    if not steps:
        raise _none_at(path)
    return checkpoint_path(path, steps[-1])


def all_checkpoints(path: str | AnyPath) -> list[AnyPath]:
    """Every finished checkpoint of a run's directory, ascending.

    Raises:
      FileNotFoundError: if there is none.
    """
    path = storage.as_path(path)
    found = [checkpoint_path(path, step) for step in checkpoint_steps(path)]
    if not found:
        raise _none_at(path)
    return found


def _none_at(path: AnyPath) -> FileNotFoundError:
    what = "holds no checkpoint_<step> directory" if storage.is_dir(path) else "does not exist"
    return FileNotFoundError(f"No checkpoint at {path}: it {what}. Give a run's directory or one checkpoint of it.")
