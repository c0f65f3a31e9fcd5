"""The directory of a run, on this machine or in a bucket.

Checkpoints are written into MODEL_DIR. Metrics, events and the configuration are appended to, which a bucket does not
allow: for a MODEL_DIR in a bucket they are in a folder of this machine, and copied to the bucket.
"""

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from limba.files import storage
from limba.files.storage import AnyPath
from limba.reports import run_lock
from limba.reports.writers import MetricWriter, Scalars

# Between two copies while only the training metrics change.
_SECONDS = 60.0


class RunDirectory:
    """The directories of a run.

    Attributes:
      home: MODEL_DIR, absolute; checkpoints are written there.
      local: the folder of metrics, events and configuration; the same as `home` unless that is in a bucket.

    Args:
      fetches: of a bucket, the files of an earlier start; who only checks needs none.

    Raises:
      ValueError: if `home` cannot be written to, or the bucket cannot be read.
    """

    def __init__(self, model_dir: str, fetches: bool = True):
        self.home: AnyPath = storage.as_path(model_dir)
        self._copied: dict[str, tuple[int, int]] = {}
        if not storage.is_remote(self.home):
            self.local = Path(self.home)
            _check_writable(self.local)
            return
        self._temporary = tempfile.TemporaryDirectory(prefix="limba-run-")
        self.local = Path(self._temporary.name)
        # A resumed run continues the files of the earlier start.
        for name in storage.list_files(self.home) if fetches else ():
            if not name.startswith("checkpoint") and name != run_lock.FILE_NAME:
                storage.write_bytes(self.local / name, storage.read_bytes(self.home / name))
        self._copied = {name: self._state(name) for name in self._names()}

    @property
    def is_remote(self) -> bool:
        return self.local != self.home

    def copy(self) -> None:
        """Copies the files that have changed since the last copy to the bucket."""
        for name in self._names():
            state = self._state(name)
            if self._copied.get(name) != state:
                storage.write_bytes(self.home / name, (self.local / name).read_bytes())
                self._copied[name] = state

    def _names(self) -> list[str]:
        return [str(path.relative_to(self.local)) for path in self.local.rglob("*") if path.is_file()]

    def _state(self, name: str) -> tuple[int, int]:
        stat = (self.local / name).stat()
        return stat.st_mtime_ns, stat.st_size


class BucketWriter:
    """Copies a run's small files to its bucket. It must be the last of the run's metric writers."""

    def __init__(self, directory: RunDirectory):
        self._directory = directory
        self._last_copy = time.monotonic()

    def write_scalars(self, step: int, dataset: str, scalars: Scalars) -> None:
        # Evaluations are copied at once: SaveBestCheckpointer reads them in the bucket.
        if dataset != "train" or time.monotonic() - self._last_copy > _SECONDS:
            self.copy()

    def copy(self) -> None:
        self._directory.copy()
        self._last_copy = time.monotonic()

    def write_text(self, step: int, dataset: str, name: str, text: str) -> None:
        """Copied with the next scalars."""

    def close(self) -> None:
        self._directory.copy()


def copy_before_checkpoint(writers: Sequence[MetricWriter]) -> None:
    """Copies what a run in a bucket has written: one that is killed resumes behind it, and does not write it again."""
    for writer in writers:
        if isinstance(writer, BucketWriter):
            writer.copy()


def _check_writable(directory: Path) -> None:
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    if (directory / "config.json").is_file() and not any(directory.glob("checkpoint_*")):
        raise ValueError(
            f"MODEL_DIR {directory} holds an exported model (config.json), not a run, and a run would write into it. "
            "Choose another folder; `limba convert from-hf` makes a checkpoint of the model."
        )
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        why = "is not a directory" if not existing.is_dir() else "is not writable"
        raise ValueError(f"MODEL_DIR {directory} cannot be written to: {existing} {why}. Choose another.")
