"""The run whose checkpoints another run is made of."""

from limba.checkpoint_files.directories import checkpoint_steps, is_checkpoint, run_directory
from limba.files.storage import AnyPath


def find(run: str) -> tuple[AnyPath, list[int]]:
    """The directory of a run, and the steps of its checkpoints, ascending.

    Raises:
      FileNotFoundError: if it is one checkpoint, or no run.
    """
    directory = run_directory(run)
    if is_checkpoint(directory):
        raise FileNotFoundError(f"{directory} is one checkpoint; give its run's directory, {directory.parent}.")
    steps = checkpoint_steps(directory)
    if not steps:
        raise FileNotFoundError(f"{directory} is no run: it holds no checkpoint_<step> directory.")
    return directory, steps
