"""The launch scripts as people call them, with fakes of gcloud, ssh and limba."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BIN = Path(__file__).parent / "bin"


def make_environment(directory: Path) -> Path:
    """A folder that passes for a virtual environment, whose `limba` is `fake_limba.py`."""
    binaries = directory / "venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(sys.executable)
    limba = binaries / "limba"
    limba.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parent / "fake_limba.py"} "$@"\n')
    limba.chmod(0o755)
    (directory / "run").mkdir()
    (directory / "cloud").mkdir()
    return binaries.parent


def environment(directory: Path, **extra: str) -> dict[str, str]:
    """What scripts see: the fakes first on PATH, nothing to install, nothing of this shell's settings."""
    ours = ("LIMBA_", "POD_", "SLURM_", "FAKE_", "T5X_", "XLA_FLAGS")  # tests have eight devices, workers one
    ours += ("TPU_", "MEGASCALE_", "GCE_")  # `limba plan`, in this process, says that it is alone
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return (
        env
        | {
            "PATH": f"{BIN}:{env['PATH']}",
            "PYTHON": sys.executable,
            "VENV": str(directory / "venv"),
            "LOCK": "none",
            "LIMBA_ACCELERATOR": "cpu",
            "FAKE_CLOUD": str(directory / "cloud"),
            "FAKE_RUN": str(directory / "run"),
            "FAKE_PORT": "0",
            "POD_POLL_SECONDS": "0.2",
        }
        | extra
    )


def call(script: str, *arguments: str, env: dict[str, str], repository: Path = ROOT) -> subprocess.CompletedProcess:
    """Runs a script of launch/ to its end."""
    return subprocess.run(
        ["bash", str(repository / "launch" / script), *arguments],
        cwd=repository,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        stdin=subprocess.DEVNULL,
    )


def wait_for(condition, what: str, seconds: float = 60.0):
    """The first true value of `condition()`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"{seconds} seconds, and no {what}")


def committed_copy(directory: Path) -> Path:
    """A repository with the launchers and gin files as they are now, committed: deploy refuses what is not.

    Python packages come from the environment of the tests: each pod of a test gets copies of this, and files are what
    they cost. The launchers read `limba/files` by its path.
    """
    repository = directory / "repository"
    names = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in names:
        if (name.startswith(("launch/", "gin/", "limba/files/")) or "/" not in name) and (ROOT / name).is_file():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, repository / name, follow_symlinks=False)
    git(repository, "init", "--quiet")
    commit(repository, "As it is")
    return repository


def commit(repository: Path, message: str) -> str:
    """Commits everything and returns the commit."""
    git(repository, "add", "--all")
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    git(repository, *who, "commit", "--quiet", "--allow-empty", "-m", message)
    return git(repository, "rev-parse", "HEAD").strip()


def git(repository: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=repository, check=True, capture_output=True, text=True).stdout
