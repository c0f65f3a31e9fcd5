"""Which code runs."""

import os
import shutil
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


def test_a_repository_runs_nothing(tmp_path, monkeypatch):
    """Its settings name programs that git would run: a monitor of files, a filter, a hook."""
    ran, monitor = tmp_path / "ran", tmp_path / "project/monitor"
    monitor.parent.mkdir()
    monitor.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    monitor.chmod(0o755)
    _git(monitor.parent, "init", "-q")
    (monitor.parent / ".gitattributes").write_text("* filter=theirs\n")
    _git(monitor.parent, "add", "-A")
    _git(monitor.parent, "commit", "-qm", "first")
    commit = _git(monitor.parent, "rev-parse", "HEAD")
    hook = monitor.parent / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    shutil.copy(monitor, hook)
    settings = {"core.fsmonitor": monitor, "filter.theirs.clean": monitor, "filter.theirs.required": "true"}
    for name, value in settings.items():
        _git(monitor.parent, "config", name, str(value))
    os.utime(monitor.parent / ".gitattributes", (1, 1))  # What it holds is compared.
    monkeypatch.chdir(monitor.parent)
    assert code_versions.commits()["project"] == commit and not ran.exists()


def test_without_git_there_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_versions.commits() == {}
