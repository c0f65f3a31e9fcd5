"""Output folders of conversions: a folder gets its name only when it is complete."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from limba.files import json_text, storage, untrusted_files, untrusted_json
from limba.files.storage import AnyPath

REPORT = "conversion_report.json"
_REQUEST = ".request.json"
# The report itself, and what people edit.
_NOT_HASHED = (REPORT, "README.md")


def choose_out(out: str | Path, *sources: AnyPath | None) -> Path:
    """The absolute path of OUT, without symbolic links.

    Raises:
      ValueError: if it is a file; or if it is, contains or lies in one of the sources.
    """
    path = Path(out).expanduser().resolve()
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; OUT is a folder.")
    for source in sources:
        if source is None or storage.is_remote(source):
            continue
        real = Path(source).resolve()
        if path == real or path in real.parents or real in path.parents:
            raise ValueError(f"OUT {path} and the source {real} must not lie in each other; choose another OUT.")
    return path


def read_report(folder: Path) -> dict[str, Any]:
    """`conversion_report.json` of a folder; {} if there is none.

    Raises:
      ValueError: if it is damaged.
    """
    file = folder / REPORT
    if not file.is_file():
        return {}
    return untrusted_json.read_object(file)


def previous(out: Path, request: Mapping[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """The report at `out` of an earlier conversion with the same request; None if `out` may be written.

    Raises:
      ValueError: if `out` holds anything else. With `overwrite`, another conversion may be replaced.
    """
    if not out.exists() or not any(out.iterdir()):
        return None
    report = read_report(out)
    if not report:
        raise ValueError(f"{out} is not empty, and not a conversion of Limba's; choose another OUT.")
    if overwrite:
        return None
    other = [key for key, value in request.items() if report.get(key) != value]
    if other:
        raise ValueError(
            f"{out} holds another conversion (other {', '.join(other)}); choose another OUT or give --overwrite."
        )
    return report


@contextlib.contextmanager
def complete_or_absent(out: Path, request: Mapping[str, Any]) -> Iterator[Path]:
    """Yields a folder to write into, and renames it to `out` at the end.

    An existing `out` is kept until then, and replaced. After an error nothing is left. After a kill or an interrupt, a
    new process with the same request finds the unfinished files in the folder and can resume.

    Args:
      out: the folder.
      request: everything that the content depends on.

    Raises:
      ValueError: if another process is writing `out`.
    """
    unfinished = out.with_name(f".{out.name}.unfinished")
    created_parent = not out.parent.exists()
    unfinished.mkdir(parents=True, exist_ok=True)
    lock = os.open(unfinished, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"Another process is writing {out} now.") from None
        try:
            _prepare(unfinished, json_text.dumps(request, sort_keys=True))
            yield unfinished
            (unfinished / _REQUEST).unlink()
            if out.exists():
                replaced = out.with_name(f".{out.name}.replaced")
                shutil.rmtree(replaced, ignore_errors=True)
                out.rename(replaced)
                unfinished.rename(out)
                shutil.rmtree(replaced)
            else:
                unfinished.rename(out)
        except Exception:
            shutil.rmtree(unfinished, ignore_errors=True)
            if created_parent and not any(out.parent.iterdir()):
                out.parent.rmdir()
            raise
    finally:
        os.close(lock)


def fingerprint(*paths: AnyPath | None) -> str:
    """A hash of the names, sizes and modification times of all files at or below the paths.

    For a bucket, a hash of the names alone.
    """
    digest = hashlib.sha256()
    for root in paths:
        if root is None:
            continue
        if storage.is_remote(root):
            digest.update("\n".join([str(root), *storage.list_files(root)]).encode())
            continue
        for file in sorted(p for p in [Path(root), *Path(root).rglob("*")] if p.is_file()):
            status = file.stat()
            digest.update(f"{file.relative_to(Path(root).parent)} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The SHA-256 of files of a finished conversion, for its report; see `changed`."""
    return {name: _sha256(folder / name) for name in names if name not in _NOT_HASHED}


def changed(folder: Path, report: Mapping[str, Any]) -> list[str]:
    """The files of which a report has the hash, and that have another content now; lost ones are no part of it.

    Raises:
      ValueError: if the report's hashes are damaged.
    """
    listed = report.get("sha256", {})
    if not isinstance(listed, dict) or not all(untrusted_files.is_inside(name) for name in listed):
        raise ValueError(f"{folder / REPORT} is damaged: its sha256 does not name files of the folder.")
    return [name for name, found in listed.items() if (folder / name).is_file() and _sha256(folder / name) != found]


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _prepare(folder: Path, request: str) -> None:
    """Empties the folder, unless its files are of the same request."""
    file = folder / _REQUEST
    if file.is_file() and file.read_text("utf-8") == request:
        return
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    file.write_text(request, "utf-8")
