"""A start that is refused changes nothing of the run in OUTPUT_DIR, and the refusal names keys of `limba run`."""

import contextlib
import dataclasses
import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from limba.addons.run.keys import script_keys
from limba.checkpoints.restore import CheckpointMismatchError
from limba.data import contract
from limba.files import storage

logger = logging.getLogger(__name__)

_FILES = ("run.gin", "run.json")
# What a training writes as soon as its start is accepted.
_ACCEPTED = Path("run") / "config.gin"
_OF_START = ("script", "overwrite_output_dir", "resume_from_checkpoint")
_ASIDE = ".predictions_of_before"
_OF_GIN = "Use the gin files of that run"


@dataclasses.dataclass
class Start:
    """What a start changes of an earlier run before it is accepted. Of several processes the first has it.

    Attributes:
      out: OUTPUT_DIR.
      files: what the files of the earlier run held.
      moved: the folder with what was moved away from the folder that it is in.
      predictions: the folder that was set aside.
    """

    out: Path
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    moved: Path | None = None
    predictions: Path | None = None

    def keep_files(self) -> None:
        """Call it before they are written."""
        self.files = {name: (self.out / name).read_text("utf-8") for name in _FILES if (self.out / name).is_file()}

    def set_aside(self, predictions: Path) -> None:
        """Takes answers under other values away, which would be taken for those of this run."""
        shutil.rmtree(self.out / _ASIDE, ignore_errors=True)
        if predictions.is_dir():
            predictions.rename(self.out / _ASIDE)
            self.predictions = predictions

    def put_back(self) -> None:
        """All that is known to have changed."""
        if self.moved is not None:
            for path in list(self.moved.iterdir()):
                _remove(self.moved.parent / path.name)  # what this start has written there
                path.rename(self.moved.parent / path.name)
            self.moved.rmdir()
            logger.warning("This start has failed: what it had moved into %s is back.", self.moved)
        if self.predictions is not None:
            _remove(self.predictions)
            (self.out / _ASIDE).rename(self.predictions)
        for name, content in self.files.items():
            storage.replace_text(self.out / name, content)

    def finish(self) -> None:
        """Deletes what was kept for the case of a refusal."""
        shutil.rmtree(self.out / _ASIDE, ignore_errors=True)

    def differing_keys(self) -> list[str]:
        """The keys of the earlier run that this start has changed, with both values."""
        if "run.json" not in self.files or not (self.out / "run.json").is_file():
            return []
        before, now = json.loads(self.files["run.json"]), json.loads((self.out / "run.json").read_text("utf-8"))
        defaults = {name: field.default for name, field in script_keys.FIELDS.items() if name not in _OF_START}
        pairs = [(name, before.get(name, default), now.get(name, default)) for name, default in defaults.items()]
        return [f"{name} was {_shown(old)} and is {_shown(new)}" for name, old, new in pairs if old != new]


@contextlib.contextmanager
def put_back(out: Path) -> Iterator[Start]:
    """Puts back what the start inside changes of the run in `out`, where it is refused.

    Raises:
      ValueError: in place of a refusal that speaks of gin, in the words of `limba run`.
    """
    start, before = Start(out), _identity(out / _ACCEPTED)
    try:
        yield start
    except BaseException as error:
        if _identity(out / _ACCEPTED) not in (None, before):
            start.finish()
            raise
        message = _in_keys(error, start)
        start.put_back()
        if message is not None:
            raise ValueError(message) from error
        raise
    start.finish()


def _in_keys(error: BaseException, start: Start) -> str | None:
    """The refusal of other values, in the words of `limba run`; None for other errors."""
    text, files = str(error), start.files
    if not files or not isinstance(error, ValueError):
        return None
    if contract.NEW_RUN in text:
        reason = re.sub(r"[.:,] [\w ]+, or $", "", text.partition(contract.NEW_RUN)[0])
        reason = reason.rpartition(" belongs to other data: ")[2]
    elif isinstance(error.__cause__, contract.ChangedVocabularyError):
        reason = text.removesuffix(", or start a new run in another directory.")
    elif isinstance(error, CheckpointMismatchError):
        reason = text.partition(_OF_GIN)[0].rstrip(". ")
    else:
        return None
    keys = start.differing_keys()
    of_keys = f" Keys: {', '.join(keys)}." if keys else ""
    return (
        f"output_dir is {start.out}, which holds a run of other values: {reason}.{of_keys} Write the old values to "
        "resume it, choose another output_dir, or write overwrite_output_dir, which keeps the old run in a folder of "
        "its own and begins a new one. Nothing of the old run was changed."
    )


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _identity(file: Path) -> tuple[int, int] | None:
    """Another one for a file that was written again."""
    return (file.stat().st_ino, file.stat().st_mtime_ns) if file.is_file() else None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
