"""The versions of the running code: git commits, a checksum of its sources, and installed packages."""

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import zlib
from collections.abc import Iterable
from pathlib import Path

from limba.files.repository import IN_CLONE, PACKAGE, REPOSITORY
from limba.files.version import VERSION

# Packages whose versions can change the numbers of a run, or the messages between its workers.
_PACKAGES = (
    *("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "flax", "optax", "orbax-checkpoint"),
    *("numpy", "gin-config", "tensorstore", "ml-dtypes", "seqio", "tensorflow", "sentencepiece", "datasets"),
)


def commits() -> dict[str, str]:
    """The git commits of the code, with `-dirty` if tracked files were changed.

    "limba" if Limba runs from its own checkout, "project" if the working directory is in another checkout.
    """
    limba_folder = REPOSITORY
    folders = {}
    # An installed Limba may lie inside the checkout of another project.
    if _git(limba_folder, "rev-parse", "--show-toplevel") == str(limba_folder):
        folders["limba"] = limba_folder
    if (here := _git(Path.cwd(), "rev-parse", "--show-toplevel")) and Path(here) != limba_folder:
        folders["project"] = Path(here)
    return {name: commit for name, folder in folders.items() if (commit := _commit(folder))}


def _commit(folder: Path) -> str | None:
    commit = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD")
    # A repository's filters are programs, which git runs where a file's time has changed.
    filters = (_git(folder, "config", "--name-only", "--get-regexp", r"^filter\.") or "").splitlines()
    if commit is None or any("=" in name for name in filters):  # A name that `-c` does not take: its file stays unread.
        return commit
    without = [word for name in filters for word in ("-c", f"{name}=")]
    changed = _git(folder, *without, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    return f"{commit}-dirty" if changed else commit


def _git(folder: Path, *command: str) -> str | None:
    """The output of git; None if git is not installed, or the folder is not in a checkout.

    The settings of a downloaded folder are data: git runs none of the programs that they name, and asks no server.
    """
    alone = ("-c", "core.fsmonitor=", "-c", f"core.hooksPath={os.devnull}")
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "", "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", folder, *alone, *command], capture_output=True, text=True, timeout=20, env=environment
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def packages(*others: str) -> dict[str, str]:
    """The versions of Python, Limba, the installed packages that can change the numbers of a run, and others."""
    versions = {"Python": sys.version.split()[0], "limba": VERSION}
    for name in (*_PACKAGES, *others):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def folders_of(modules: Iterable[str]) -> dict[str, str]:
    """The folder on the Python path from which each of a user's own modules was imported, by top-level name.

    Limba's modules, installed packages and Python's own are left out.
    """
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    apart = [*(PACKAGE / name for name in ("", "tasks", "convert")), *installed]
    apart = [folder.resolve() for folder in apart]
    folders = {}
    for name in sorted({name.partition(".")[0] for name in modules}):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or any(Path(file).resolve().is_relative_to(folder) for folder in apart):
            continue
        path = Path(file).absolute()
        folders[name] = str(path.parents[1] if path.name == "__init__.py" else path.parent)
    return folders


def sources() -> str:
    """The CRC-32 of Limba's source files: it also shows changes that are not committed."""
    checksum = 0
    for folder in (PACKAGE, (PACKAGE / "tasks").resolve()) if IN_CLONE else (PACKAGE,):
        for path in sorted(folder.rglob("*.py")):
            checksum = zlib.crc32(path.read_bytes(), checksum)
    return f"{checksum:08x}"
