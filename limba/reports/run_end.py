"""How a run ended, where it did not reach its last step: `MODEL_DIR/run_end.json`, for those who look at it later.

`{"kind": "failed", "reason": "The loss of step 7 is nan. …"}`; kind is "stopped" where the run
was asked to stop. The next start removes it. A process that was killed leaves none, but its lock file.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from limba.files import json_text, redaction, storage, untrusted_json
from limba.files.storage import AnyPath
from limba.reports import run_lock
from limba.workers.preemption import PREEMPTED_EXIT_CODE

FILE_NAME = "run_end.json"
FAILED, STOPPED = "failed", "stopped"
# Characters of a reason: the first sentences of the longest messages.
_LONGEST = 2000


class StartsAgainError(Exception):
    """Ends a start of a run that the same process begins again: it is no end of the run."""


@contextlib.contextmanager
def recorded(model_dir: AnyPath, writes: bool = True) -> Iterator[None]:
    """A context of the steps of a run; writes how it ended if an error or a request to stop ended it.

    Args:
      writes: whether this process does; one of a run's does.
    """
    if not writes:
        yield
        return
    file = model_dir / FILE_NAME
    storage.remove_file(file)
    try:
        yield
    except StartsAgainError:
        raise
    except BaseException as error:
        if not {*storage.list_names(model_dir)} - {run_lock.FILE_NAME}:
            raise  # It failed before it wrote anything, and leaves no folder.
        write(model_dir, error)
        raise


def write(model_dir: AnyPath, error: BaseException) -> None:
    """Writes the record of what has ended a run."""
    record = {"kind": _kind(error), "reason": _reason(error)}
    with contextlib.suppress(OSError, ValueError):  # A full disk: the error of the run says more.
        storage.write_bytes(model_dir / FILE_NAME, json_text.dumps(record, ensure_ascii=False).encode())


def read(model_dir: AnyPath) -> dict[str, Any] | None:
    """The record; None where there is none, or none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        record = untrusted_json.parse_object(storage.read_bytes(model_dir / FILE_NAME), FILE_NAME)
        if record.get("kind") in (FAILED, STOPPED) and isinstance(record.get("reason"), str):
            return record | {"reason": record["reason"][:_LONGEST]}
    return None


def _kind(error: BaseException) -> str:
    is_request = isinstance(error, KeyboardInterrupt)
    is_request |= isinstance(error, SystemExit) and error.code == PREEMPTED_EXIT_CODE
    return STOPPED if is_request else FAILED


def _reason(error: BaseException) -> str:
    if _kind(error) == STOPPED:
        return "on request"
    return redaction.redact(f"{str(error).strip() or type(error).__name__}")[:_LONGEST]
