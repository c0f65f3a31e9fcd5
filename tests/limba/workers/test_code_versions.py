"""Which code runs."""

import subprocess
from pathlib import Path

from limba.workers import code_versions


def _git(folder: Path, *command: str) -> str:
    arguments = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *command]
    return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_commits_of_limba_and_of_the_project(tmp_path, monkeypatch):
    """A package in another one's checkout, as in a virtual environment, has no commit of its own."""
    _git(tmp_path, "init", "-q")
    (tmp_path / "train.gin").write_text("a = 1")
    (tmp_path / "venv/limba").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "venv")
    monkeypatch.setattr(code_versions, "REPOSITORY", tmp_path / "venv")
    assert code_versions.commits() == {}  # nothing is committed yet
    _git(tmp_path, "add", "-A")
    _git(tmp_path, "commit", "-qm", "first")
    _git(tmp_path, "tag", "v1")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    assert code_versions.commits() == {"project": commit}
    (tmp_path / "train.gin").write_text("a = 2")
    assert code_versions.commits() == {"project": f"{commit}-dirty"}
    (tmp_path / "limba").mkdir()
    monkeypatch.setattr(code_versions, "REPOSITORY", tmp_path)
    assert code_versions.commits() == {"limba": f"{commit}-dirty"}


def test_without_git_there_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_versions.commits() == {}
