"""Which code runs: the commits of its checkouts, its sources, and the packages that it stands on."""

import importlib.metadata
import subprocess
import sys
import zlib
from pathlib import Path

import limba

# Those whose versions can change the numbers of a run, or what its workers say to each other.
_PACKAGES = (
    *("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin", "flax", "optax", "orbax-checkpoint"),
    *("numpy", "gin-config", "tensorstore", "ml-dtypes", "seqio", "tensorflow", "sentencepiece", "datasets"),
)


def commits() -> dict[str, str]:
    """The git commits of the code, with `-dirty` where tracked files were changed.

    "limba" if it runs from its own checkout, "project" if the working directory is in another one.
    """
    limba_folder = Path(limba.__file__).resolve().parents[1]
    folders = {}
    # An installed package may lie in the checkout of something else.
    if _git(limba_folder, "rev-parse", "--show-toplevel") == str(limba_folder):
        folders["limba"] = limba_folder
    if (here := _git(Path.cwd(), "rev-parse", "--show-toplevel")) and Path(here) != limba_folder:
        folders["project"] = Path(here)
    describe = ("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return {name: commit for name, folder in folders.items() if (commit := _git(folder, *describe))}


def _git(folder: Path, *command: str) -> str | None:
    """What git prints; None if it is not installed, or the folder is in no checkout."""
    try:
        done = subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True, timeout=20)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def packages() -> dict[str, str]:
    """The versions of Python, of Limba, and of those installed packages that decide on the numbers of a run."""
    versions = {"Python": sys.version.split()[0], "limba": limba.__version__}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def sources() -> str:
    """The CRC-32 of Limba's own source files: it tells changes that are in no commit."""
    checksum = 0
    for folder in ("limba", "tasks"):
        for path in sorted((Path(limba.__file__).resolve().parents[1] / folder).rglob("*.py")):
            checksum = zlib.crc32(path.read_bytes(), checksum)
    return f"{checksum:08x}"
