"""Output folders of conversions: a folder gets its name only when it is complete."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from limba.files import json_text, storage, untrusted_files, untrusted_json, written_files
from limba.files.storage import AnyPath

REPORT = "conversion_report.json"
# What people edit.
CARD = "README.md"
_REQUEST = ".request.json"
_HASHES = "sha256"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_files(value: object) -> bool:
    return isinstance(value, list) and all(map(untrusted_files.is_inside, value))


# What readers take from a report without a further look.
_VALUES: untrusted_json.Values = {
    **dict.fromkeys(("checkpoint", "dtype", "family", "format", "quantization"), (_is_text, "a text")),
    **dict.fromkeys(("step", "longest_row"), untrusted_json.COUNT),
    "formats": (lambda value: isinstance(value, list) and all(map(_is_text, value)), "a list of texts"),
    "files": (_are_files, "a list of files of the folder"),
    _HASHES: (lambda value: isinstance(value, dict) and _are_files([*value]), "a hash for each file of the folder"),
}


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
      ValueError: if it is damaged, or a value of it is none that a conversion writes.
    """
    file = folder / REPORT
    if not file.is_file():
        return {}
    report = untrusted_json.read_object(file)
    given = {key: value for key, value in report.items() if value is not None}
    if wrong := untrusted_json.wrong_value(given, _VALUES):
        raise ValueError(f"{file} is damaged: {wrong}.")
    return report


def previous(out: Path, request: Mapping[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """The report at `out` of an earlier conversion with the same request; None if `out` may be written.

    Raises:
      ValueError: if `out` holds anything else. With `overwrite`, another conversion may be replaced.
    """
    if not out.exists() or not any(out.iterdir()):
        return None
    if not (out / REPORT).is_file():
        raise ValueError(f"{out} is not empty, and not a conversion of Limba's; choose another OUT.")
    if overwrite:  # Also one whose report is damaged, or of an earlier version.
        return None
    report = read_report(out)
    other = [key.replace("_", " ") for key, value in request.items() if report.get(key) != value]
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
      ValueError: if another process is writing `out`, or the folder of unfinished files is a link.
    """
    unfinished = out.with_name(f".{out.name}.unfinished")
    written_files.refuse_link(unfinished)
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
                storage.remove_tree(replaced)
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


def sealed(folder: Path, report: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The report of a finished conversion with its files and their SHA-256, its own too; see `changed`."""
    report = {**report, "files": sorted({REPORT, *names})}
    found = {name: sha256(folder / name) for name in report["files"] if name != REPORT}
    return {**report, _HASHES: found | {REPORT: _of_report(report)}}


def changed(folder: Path, report: Mapping[str, Any]) -> list[str] | None:
    """The files that have another content than the report has the hash of, itself too; lost ones are no part of it.

    None of a report without hashes, which an earlier version wrote.
    """
    listed = report.get(_HASHES)
    if listed is None:
        return None
    is_whole = {*(report.get("files") or ())} <= {*listed} | {REPORT, CARD}
    of_report = [REPORT] * (not is_whole or listed.get(REPORT, _of_report(report)) != _of_report(report))
    others = [name for name in listed if name != REPORT and (folder / name).is_file()]
    return of_report + [name for name in others if sha256(folder / name) != listed[name]]


def _of_report(report: Mapping[str, Any]) -> str:
    """The hash of everything in a report but the hashes, however it is indented."""
    content = {key: value for key, value in report.items() if key != _HASHES}
    return hashlib.sha256(json_text.dumps(content, sort_keys=True).encode()).hexdigest()


def sha256(file: Path) -> str:
    """Of a file of any size, in hexadecimal digits."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _prepare(folder: Path, request: str) -> None:
    """Empties the folder, unless its files are of the same request."""
    file = folder / _REQUEST
    has_link = any(entry.is_symlink() for entry in folder.rglob("*"))  # Then it is not as a conversion left it.
    if not has_link and file.is_file() and file.read_text("utf-8") == request:
        return
    for entry in folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    file.write_text(request, "utf-8")
