"""A T5's checkpoint as a folder for CTranslate2 that is kept in its run, for `limba serve RUN`.

    runs/mine/checkpoint_2400
    runs/mine/engines/ctranslate2-2400-5f0c9a1e77d2     # the step, and a hash of what the checkpoint holds

The engine proves the folder once, when it is written. Later starts compare its files with the hashes of its report, and
the report with those that this user's own conversions left in `~/.cache/limba/engines`: hashes in a run that somebody
else wrote prove nothing, and no engine reads such a folder.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from limba.addons.engines import engine_folder, to_ct2
from limba.addons.engines.ct2 import ct2_library
from limba.checkpoint_files import run_folder, state_checksums
from limba.convert.model_files.model import ModelHints
from limba.files import disk, local_paths, storage, written_files
from limba.files.output_folder import REPORT, changed, complete_or_absent, fingerprint, read_report
from limba.files.storage import AnyPath
from limba.files.version import VERSION

# `(what)`: a context of a part of the work, which says what it is and how long it took.
Part = Callable[[str], AbstractContextManager[None]]

FOLDER = "engines"
_PREFIX = "ctranslate2-"
_T5 = "T5Config"
_OF_CHECKPOINT = (
    state_checksums.FILE_NAME,
    run_folder.RECORD,
    run_folder.VOCABULARY,
    run_folder.TOKENIZER,
    run_folder.TOKENIZER_SETTINGS,
)


@contextlib.contextmanager
def kept_folder(checkpoint: str, average: bool, part: Part, say: Callable[[str], None]) -> Iterator[Path]:
    """A context with the folder of a checkpoint, in float32: that of an earlier call, or a new one.

    A run that cannot be written to gets a temporary folder, which is removed at the end.

    Args:
      average: the average of the parameters that the run kept.
      part: for what takes time.
      say: for a line about the folder.

    Raises:
      FileNotFoundError: if nothing tells the vocabulary.
      ValueError: if ctranslate2 is not installed, or does not have the model; if the disk is full, or the check fails.
    """
    ct2_library.version()
    path = storage.as_path(checkpoint)
    _require_t5(path)
    with contextlib.ExitStack() as stack:
        try:
            if storage.is_remote(path):
                raise OSError("it is in a bucket")
            folder = _whole(path, average, Path(path).absolute().parent / FOLDER, part, say)
        except FileNotFoundError:
            raise
        except OSError as error:
            say(f"Nothing can be kept beside {path} ({error.strerror or error}): it is converted for this start alone.")
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="limba-serve-"))
            folder = _whole(path, average, Path(temporary), part, say)
        yield folder


def _require_t5(path: AnyPath) -> None:
    """Raises ValueError for a run of another network, before its tensors are opened."""
    kind = run_folder.network_class(run_folder.load_run_info(path)) if run_folder.has_run_info(path) else _T5
    if kind != _T5:
        raise ValueError(f"{path} has an {kind} and no T5, whose answers alone CTranslate2 gives.")


def _whole(path: AnyPath, average: bool, place: Path, part: Part, say: Callable[[str], None]) -> Path:
    """The folder of a checkpoint in `place`; it is written if it is not there, not whole, or of other versions."""
    written_files.refuse_link(place)
    place.mkdir(exist_ok=True)
    with _locked(place, say):
        folder = place / _name(path, average)
        why = _why_not(folder) if folder.exists() else "is not there"
        if why and folder.exists():
            say(f"{folder} {why}: it is written again.")
        if why:
            _write(path, average, folder, part, say)
            _remove_forgotten(place, path)
    return folder


@contextlib.contextmanager
def _locked(place: Path, say: Callable[[str], None]) -> Iterator[None]:
    """A context that one process is in at a time."""
    lock = os.open(place, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process writes into {place}: waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _name(path: AnyPath, average: bool) -> str:
    """Of the folder: the checkpoint, and a hash of its sums, its record and its vocabulary."""
    digest = hashlib.sha256(str(average).encode())
    for name in _OF_CHECKPOINT:
        if storage.is_file(file := path / run_folder.FOLDER / name):
            digest.update(name.encode() + storage.read_bytes(file))
    if not storage.is_file(path / run_folder.FOLDER / state_checksums.FILE_NAME):  # Of an earlier version, or T5X.
        digest.update(fingerprint(path).encode())
    return f"{_PREFIX}{path.name.removeprefix('checkpoint_')}-{digest.hexdigest()[:12]}"


def _why_not(folder: Path) -> str:
    """Why a folder cannot be served; "" if it can."""
    try:
        report = read_report(folder)
    except ValueError:
        return "is damaged"
    listed = report.get("files") or ["model.bin"]
    if changed(folder, report) != [] or not all((folder / name).is_file() for name in listed):
        return "is damaged"
    versions = {"limba_version": VERSION, "ctranslate2_version": ct2_library.version(), "checked": True}
    if {key: report.get(key) for key in versions} != versions:
        return "was written by other versions"
    mark = _mark(folder)
    return "" if mark is not None and mark.is_file() else "was not written by this user on this machine"


def _mark(folder: Path) -> Path | None:
    """The file that says that this user's conversion wrote the folder's report; None for a user without a home."""
    marks = local_paths.cache_folder("engines", os.environ)
    return None if marks is None else marks / hashlib.sha256((folder / REPORT).read_bytes()).hexdigest()


def _write(path: AnyPath, average: bool, folder: Path, part: Part, say: Callable[[str], None]) -> None:
    engine = to_ct2.ENGINE
    with part("Reading the checkpoint"):
        model = engine_folder.open_source(str(path), ModelHints(average=average))
        export = engine.export(model, engine.quantizations[0])
    for warning in export.warnings:
        say(warning)
    disk.require(folder, export.num_bytes)
    request = engine_folder.make_request(engine, export, average, verify=True)
    begun = {**request, engine_folder.version_key(export): engine.version()}
    with complete_or_absent(folder, request) as unfinished:
        with part(f"Converting it for CTranslate2, in {folder}"):
            export.write(unfinished)
        with part("Comparing what CTranslate2 and JAX compute"):
            rows = export.compare(unfinished)
            engine_folder.complete(export, unfinished, folder.name, begun, rows)
    # Without it the folder serves this start, and the next one writes it again.
    with contextlib.suppress(OSError):
        if (mark := _mark(folder)) is not None:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def _remove_forgotten(place: Path, path: AnyPath) -> None:
    """Removes folders whose checkpoint the run no longer has."""
    for folder in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(ValueError, OSError):  # Not whole; another process has it.
            checkpoint = read_report(folder).get("checkpoint")
            if checkpoint and not (path.parent / checkpoint).exists():
                shutil.rmtree(folder)
