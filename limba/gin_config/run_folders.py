"""Folders of runs and models, which may come from strangers: none of their modules is imported, under no name.

They are the runs and models that a command reads, and the runs whose configuration gin has read: what it names, a
task's module for example, may be imported later. Once a run is read, they are all folders of runs: what a command makes
of a run, such as an average, has the names of that run.
"""

import os
from pathlib import Path

from limba.addons import table
from limba.files import storage

# The files of a run that gin reads, and their folder in a checkpoint: `checkpoint_files.run_folder`, which needs JAX.
_OF_RUNS, _IN_CHECKPOINT = ("branch.gin", "config.gin", "model.gin"), "run"
# In place of the folder of a run in a bucket: no module lies there.
_IN_BUCKET = Path("/dev/null")

_read: set[Path] = set()
_reads_a_run = False
# The files that gin reads now, the innermost last; what it reads without a file is of the command line.
open_files: list[str] = []


def open_file(file: str) -> None:
    """Gin begins to read a file."""
    global _reads_a_run
    open_files.append(file)
    if (run := run_of(file)) is not None:
        _reads_a_run = True
        _read.add(run)


def read_run(folder: str | os.PathLike) -> None:
    """From now on modules in the folder of this run, or of the run of this checkpoint, are not imported."""
    global _reads_a_run
    _reads_a_run = True
    if not storage.is_remote(str(folder)):
        read_data(_home(Path(folder).expanduser().resolve()))


def read_data(folder: str | os.PathLike) -> None:
    """The same of a folder on this machine that is no run; it imports nothing."""
    _read.add(Path(folder).expanduser().resolve())


def _home(folder: Path) -> Path:
    """The folder of the run at a path: of a checkpoint in it, or of an output folder of `limba run` around it."""
    from limba.checkpoint_files import directories  # imports JAX

    is_inside = directories.is_checkpoint(folder) and bool(directories.checkpoint_steps(folder.parent))
    home = folder.parent if is_inside else folder
    return home.parent if home.name == "run" and (home.parent / "config.json").is_file() else home


def run_of(file: str) -> Path | None:
    """The folder of the run whose configuration a file is; None for other files."""
    name = file.rpartition("/")[2]
    if name not in _OF_RUNS:
        return None
    if storage.is_remote(file):
        return _IN_BUCKET
    from limba.checkpoint_files import directories  # imports JAX

    folder = Path(file).expanduser().parent.resolve()  # A file that is a link is of the run in which it lies.
    if folder.name == _IN_CHECKPOINT and directories.is_checkpoint(folder.parent):
        return _home(folder.parent)
    home = _home(folder)
    return home if directories.checkpoint_steps(folder) or home in _read else None


def reads_run() -> bool:
    """Whether gin reads a run's configuration now, or a file that one includes."""
    return any(run_of(file) is not None for file in open_files)


def records_nothing(parameter: str, value: object) -> bool:
    """Whether a run is read now, and this is a field of before an add-on took it, at the value without effect."""
    is_former = any((parameter, value) in addon.former_fields.items() for addon in table.ADDONS.values())
    return is_former and bool(open_files) and run_of(open_files[-1]) is not None


def holding(file: str) -> str:
    """Why a file is not imported that lies in the folder of a run or model; "" if it does not."""
    # A link in the folder is of the folder, wherever its file is.
    places = {place.resolve() for place in (Path(file), *Path(file).absolute().parents)}
    inside = [run for run in _read if any(place.is_relative_to(run) for place in places)]
    if _reads_a_run:
        inside += [place for place in places if _is_run(place)]
    return f"it lies in the folder of the run or model {inside[0]}, which may come from somebody else" if inside else ""


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run, an output folder of `limba run`, or a checkpoint of Limba's."""
    from limba.checkpoint_files import directories  # imports JAX

    try:
        runs = [folder, folder / "run"] if (folder / "config.json").is_file() else [folder]
        is_checkpoint = (folder / _IN_CHECKPOINT).is_dir() and directories.is_checkpoint(folder)
        return is_checkpoint or any(directories.checkpoint_steps(run) for run in runs)
    except PermissionError:  # a folder above, whose entries are not for everyone
        return False
