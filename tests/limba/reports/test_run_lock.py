"""Two runs in one MODEL_DIR: the second is refused, and a dead one is not a hindrance."""

import json
import os
import subprocess
import sys
import time

import pytest

from limba.reports import run_lock
from tests import house

_HOLDER = """
import sys
from pathlib import Path
from limba.reports import run_lock
with run_lock.held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def _hold(model_dir):
    """A process that holds the lock until its standard input is closed."""
    command = [sys.executable, "-c", _HOLDER, str(model_dir)]
    process = subprocess.Popen(
        command, cwd=house.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n", process.communicate()[1]
    return process


def test_another_process_is_named_and_a_killed_one_leaves_no_lock(tmp_path):
    model_dir = tmp_path / "runs" / "mine"
    other = _hold(model_dir)
    words = (
        rf"MODEL_DIR {model_dir} is in use by another run \(process {other.pid}, on \S+, started 20\d\d-.*choose anot"
    )
    with pytest.raises(run_lock.RunLockedError, match=words), run_lock.held(model_dir):
        pass
    other.kill()
    other.communicate()
    assert (model_dir / run_lock.FILE_NAME).exists(), "a killed process leaves its file"
    with run_lock.held(model_dir) as lock:
        assert json.loads((model_dir / run_lock.FILE_NAME).read_text())["process"] == os.getpid()
        lock.check()
    assert not (model_dir / run_lock.FILE_NAME).exists()
    # One that ends in order leaves nothing, not even the folder that it made.
    other = _hold(tmp_path / "new")
    other.communicate("")
    assert other.returncode == 0 and not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b'{"process": {"a": 1}}'])
def test_a_damaged_file_does_not_matter(tmp_path, content):
    (tmp_path / run_lock.FILE_NAME).write_bytes(content)
    with run_lock.held(tmp_path):
        pass
    assert run_lock._name(run_lock._parse(content)) == "which does not say what it is"


@pytest.fixture
def without_locks(monkeypatch):
    """As in a bucket: the file is renewed instead."""

    def refuse(path):
        raise NotImplementedError("Operation not supported")

    monkeypatch.setattr(run_lock, "_open_locked", refuse)
    monkeypatch.setattr(run_lock, "_RENEWAL_SECONDS", 0.1)
    monkeypatch.setattr(run_lock, "_STALE_SECONDS", 600)
    monkeypatch.setattr(run_lock, "_POLL_SECONDS", 0.05)


def _read(file):
    """The record of a file that is renewed meanwhile: for a moment it is empty."""
    while not (record := run_lock._parse(file.read_bytes())):
        time.sleep(0.001)
    return record


def test_a_renewed_lock_is_respected_and_a_stale_one_taken(tmp_path, without_locks, monkeypatch):
    file = tmp_path / run_lock.FILE_NAME
    with run_lock.held(tmp_path) as first:
        with pytest.raises(run_lock.RunLockedError, match=rf"another run \(process {os.getpid()}"):
            run_lock.held(tmp_path).__enter__()  # At the next renewal, long before the lock would be stale.
        first.check()
        record = _read(file)
    assert not file.exists()
    file.write_text(json.dumps(record | {"id": "dead", "host": "gone"}))
    monkeypatch.setattr(run_lock, "_STALE_SECONDS", 0.6)
    began = time.monotonic()
    with run_lock.held(tmp_path):
        assert time.monotonic() - began >= 0.6
        assert _read(file)["host"] != "gone"


def test_a_run_whose_place_was_taken_ends(tmp_path, without_locks):
    file = tmp_path / run_lock.FILE_NAME
    with run_lock.held(tmp_path) as lock:
        taken = json.dumps({"id": "other", "host": "host-b", "process": 7, "started": "today"})
        file.write_text(taken)
        while not lock._taken_by:
            file.write_text(taken)
            time.sleep(0.02)
        with pytest.raises(
            run_lock.RunLockedError, match=r"Another run \(process 7, on host-b, started today\) has taken"
        ):
            lock.check()
    assert file.read_text() == taken, "it is the other's"
