"""Saves checkpoints by Orbax. `checkpointing` imports this where it saves: the import of Orbax takes 0.25 s."""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from limba.checkpoint_files import run_folder
from limba.checkpoint_files.small_files import read_files, write_files
from limba.files import storage
from limba.files.storage import AnyPath


class FilesHandler(ocp.CheckpointHandler):
    """Lets Orbax write the files when it writes the tensors, into the folder that it renames at the end."""

    def save(self, directory: epath.Path, args: "FilesSave") -> None:
        write_files(storage.as_path(directory), args.files)

    def restore(self, directory: epath.Path, args: Any = None) -> dict[str, bytes]:
        del args
        return read_files(storage.as_path(directory))


@ocp.args.register_with_handler(FilesHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class FilesSave(ocp.args.CheckpointArgs):
    """Orbax's arguments: the content of the files by name."""

    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


_excepthook = threading.excepthook


def _leave_errors_to_the_caller() -> None:
    """What fails in Orbax's threads is raised by `check` and `wait`: no tracebacks before."""

    def hook(args: threading.ExceptHookArgs) -> None:
        if not type(args.thread).__module__.startswith("orbax."):
            _excepthook(args)

    threading.excepthook = hook


class OrbaxSaver:
    """Saves states and their small files in the background, one checkpoint after the other."""

    def __init__(self) -> None:
        _leave_errors_to_the_caller()
        files = {"dataset": FilesHandler(), run_folder.FOLDER: FilesHandler()}
        handlers = {"state": ocp.StandardCheckpointHandler(), **files}
        self._checkpointer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler(**handlers))

    def save(
        self, path: AnyPath, tree: Any, dataset_files: Mapping[str, bytes], run_files: Mapping[str, bytes]
    ) -> None:
        """Starts to save; the arrays of `tree` may be donated as soon as this returns."""
        files = {"dataset": FilesSave(dataset_files), run_folder.FOLDER: FilesSave(run_files)}
        self._checkpointer.save(path, args=ocp.args.Composite(state=ocp.args.StandardSave(tree), **files))

    def check(self) -> None:
        """Raises the error of a save that has failed in the background, once."""
        self._checkpointer.check_for_errors()

    def wait(self) -> None:
        self._checkpointer.wait_until_finished()

    def close(self) -> None:
        self._checkpointer.close()
