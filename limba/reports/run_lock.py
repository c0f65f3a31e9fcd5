"""One run at a time in a MODEL_DIR: two would remove and overwrite each other's checkpoints.

On a disk the operating system locks MODEL_DIR/run.lock (`flock`). Such a lock ends with its process, however that
ends, so a crash leaves none. The file says which run has it.

A bucket has no locks, and some network file systems have none either. There the run's thread writes the file again
every 20 s. A run that finds such a file watches it for a minute. If it changes, its run is alive, and the new one is
refused. If not, that run has died, and the new one takes its place. A run whose place was taken ends.
"""

import contextlib
import fcntl
import itertools
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from limba.files import json_text, storage, written_files
from limba.files.storage import AnyPath
from limba.workers import distributed

logger = logging.getLogger(__name__)

FILE_NAME = "run.lock"
_RENEWAL_SECONDS = 20.0
# A run that does not renew its lock for so long has died.
_STALE_SECONDS = 60.0
_POLL_SECONDS = 2.0
# `is_held` takes a lock that nobody has for a moment; a run that starts just then tries again.
_TRIES, _MOMENT_SECONDS = 3, 0.05


class RunLockedError(ValueError):
    """Another run is working in MODEL_DIR; the message names it."""


class RunLock:
    """What a run asks between its steps. On a disk there is nothing to ask."""

    def check(self) -> None:
        """Raises RunLockedError if another run has taken the place of this one."""


@contextlib.contextmanager
def held(model_dir: AnyPath) -> Iterator[RunLock]:
    """The lock of a run; process 0 holds it for all workers.

    Raises:
      RunLockedError: on all workers, if another run works there.
    """
    with contextlib.ExitStack() as stack:
        lock = RunLock()

        def take() -> str:
            nonlocal lock
            try:
                lock = stack.enter_context(_of_process(model_dir))
            except RunLockedError as error:
                return str(error)
            return ""

        if refusal := distributed.from_first("lock of the run", take):
            raise RunLockedError(refusal)
        yield lock


def check_free(model_dir: AnyPath) -> None:
    """Raises RunLockedError if another run works in a folder of this machine; takes and writes nothing.

    Who takes the lock of a bucket watches it first (`held`).
    """

    def refusal() -> str:
        if isinstance(model_dir, Path) and is_held(model_dir):
            return str(_refusal(model_dir, _parse(storage.read_bytes(model_dir / FILE_NAME))))
        return ""

    if said := distributed.from_first("look at the lock of the run", refusal):
        raise RunLockedError(said)


@contextlib.contextmanager
def _of_process(model_dir: AnyPath) -> Iterator[RunLock]:
    if isinstance(model_dir, Path):
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_flock(model_dir))
            except NotImplementedError as error:
                logger.info("%s has no file locks (%s): the lock is renewed in a file.", model_dir, error)
            else:
                yield RunLock()
                return
    lock = _RenewedLock(model_dir)
    try:
        yield lock
    finally:
        lock.release()


def is_held(model_dir: AnyPath) -> bool:
    """Whether a run works there now. Of a lock that is renewed, and has no other sign of life, the file's age tells."""
    path = model_dir / FILE_NAME
    if not isinstance(path, Path):
        return storage.is_file(path)
    try:
        with path.open("rb") as file:
            record, age = _parse(file.read()), time.time() - path.stat().st_mtime
            if "renewed" in record:
                return age < _STALE_SECONDS
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # There is none, or it may not be read.
        return False
    return False


def _record() -> dict[str, Any]:
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    return {"host": socket.gethostname(), "process": os.getpid(), "started": now, "id": secrets.token_hex(8)}


def _parse(content: bytes) -> dict[str, Any]:
    """The record of a file that may be damaged, or not written yet."""
    with contextlib.suppress(ValueError):
        record = json.loads(content)
        if isinstance(record, dict):
            return record
    return {}


def _name(record: dict[str, Any]) -> str:
    names = {"process": "process {}", "host": "on {}", "started": "started {}"}
    words = [form.format(record[key]) for key, form in names.items() if isinstance(record.get(key), str | int)]
    return ", ".join(words) or "which does not say what it is"


def _refusal(model_dir: AnyPath, record: dict[str, Any]) -> RunLockedError:
    return RunLockedError(
        f"MODEL_DIR {model_dir} is in use by another run ({_name(record)}). Two runs would overwrite each other's "
        "checkpoints: stop that one first, or choose another MODEL_DIR."
    )


# ------------------------------------------------------ on a disk -----------------------------------------------------


@contextlib.contextmanager
def _flock(model_dir: Path) -> Iterator[None]:
    is_new = not model_dir.exists()
    model_dir.mkdir(parents=True, exist_ok=True)
    path = model_dir / FILE_NAME
    file = _open_locked(path)
    try:
        file.write(json_text.dumps(_record()).encode())
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()
        if is_new:  # A run that failed before it wrote anything leaves no folder.
            with contextlib.suppress(OSError):
                model_dir.rmdir()


def _open_locked(path: Path) -> IO[bytes]:
    for tries in itertools.count(1):
        file = written_files.append(path, "a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            record = _parse(file.read())
            file.close()
            if tries < _TRIES:
                time.sleep(_MOMENT_SECONDS)
                continue
            raise _refusal(path.parent, record) from None
        except OSError as error:
            file.close()
            raise NotImplementedError(error.strerror) from error
        # A run that ended a moment ago may have removed the file that was opened.
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            file.truncate(0)
            break
        file.close()
    return file


# ------------------------------------------------------ in a bucket ---------------------------------------------------


class _RenewedLock(RunLock):
    def __init__(self, model_dir: AnyPath):
        self._model_dir, self._path = model_dir, model_dir / FILE_NAME
        self._own = _record()
        self._taken_by: dict[str, Any] | None = None
        self._wait_until_stale()
        self._write()
        time.sleep(_POLL_SECONDS)  # Of two runs that come at once, the one that wrote last stays.
        if (other := self._read()).get("id") != self._own["id"]:
            raise _refusal(model_dir, other)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="limba-run-lock", daemon=True)
        self._thread.start()

    def _read(self) -> dict[str, Any]:
        try:
            return _parse(storage.read_bytes(self._path))
        except FileNotFoundError:
            return {}

    def _write(self) -> None:
        storage.write_bytes(self._path, json_text.dumps(self._own | {"renewed": secrets.token_hex(8)}).encode())

    def _wait_until_stale(self) -> None:
        found = self._read()
        if not found:
            return
        logger.info(
            "%s has the lock of another run (%s). It is watched for %.0f s: a run that lives renews it.",
            self._model_dir,
            _name(found),
            _STALE_SECONDS,
        )
        end = time.monotonic() + _STALE_SECONDS
        while time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
            now = self._read()
            if not now:
                return
            if now != found:
                raise _refusal(self._model_dir, now)
        logger.info("That run has ended without a word; this one takes its place.")

    def _renew(self) -> None:
        while not self._closed.wait(_RENEWAL_SECONDS):
            try:
                found = self._read()
                if found.get("id", self._own["id"]) != self._own["id"]:
                    self._taken_by = found
                    return
                self._write()
            except (OSError, ValueError) as error:
                logger.warning("The lock %s could not be renewed (%s).", self._path, error)

    def check(self) -> None:
        if self._taken_by is not None:
            raise RunLockedError(
                f"Another run ({_name(self._taken_by)}) has taken MODEL_DIR {self._model_dir} over, because this one "
                f"did not renew its lock for {_STALE_SECONDS:.0f} s. This run ends, and saves nothing more."
            )

    def release(self) -> None:
        self._closed.set()
        self._thread.join()
        if self._taken_by is None:
            storage.remove_file(self._path)
