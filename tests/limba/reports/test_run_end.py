"""How a run ended, for those who look at it later."""

import errno
import json

import pytest

from limba.files import storage
from limba.reports import run_end


@pytest.fixture(autouse=True)
def configuration(tmp_path):
    """What a run writes first; one that failed before that leaves nothing."""
    (tmp_path / "config.gin").touch()
    return tmp_path / "config.gin"


def test_a_run_that_wrote_nothing_leaves_nothing(tmp_path, configuration):
    configuration.unlink()
    with pytest.raises(ValueError), run_end.recorded(tmp_path):
        raise ValueError("no such checkpoint")
    assert not list(tmp_path.iterdir())


def test_an_error_is_recorded_without_its_secrets(tmp_path, monkeypatch):
    token = "hf_" + "a1B2" * 9
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(OSError), run_end.recorded(tmp_path):
        raise OSError(f"The hub refuses {token}.")
    end = run_end.read(tmp_path)
    assert end["kind"] == "failed" and end["reason"].startswith("The hub refuses ") and token not in end["reason"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (SystemExit(75), "stopped"),
        (KeyboardInterrupt(), "stopped"),
        (SystemExit(3), "failed"),
        (MemoryError(), "failed"),
    ],
)
def test_a_request_to_stop_is_no_failure(tmp_path, error, kind):
    with pytest.raises(type(error)), run_end.recorded(tmp_path):
        raise error
    assert run_end.read(tmp_path)["kind"] == kind
    with run_end.recorded(tmp_path):
        pass
    assert run_end.read(tmp_path) is None


def test_a_full_disk_and_other_processes_write_nothing(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="the error of the run"), run_end.recorded(tmp_path, writes=False):
        raise ValueError("the error of the run")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "write_bytes", full)
    with pytest.raises(ValueError, match="the error of the run"), run_end.recorded(tmp_path):
        raise ValueError("the error of the run")
    assert [file.name for file in tmp_path.iterdir()] == ["config.gin"]


@pytest.mark.parametrize("content", ["", "[]", '{"kind": "failed"}', '{"kind": "x", "reason": "y"}'])
def test_a_damaged_record_is_none(tmp_path, content):
    (tmp_path / run_end.FILE_NAME).write_text(content)
    assert run_end.read(tmp_path) is None


def test_a_start_after_which_the_run_goes_on_by_itself_is_no_end(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(run_end.StartsAgainError), run_end.recorded(tmp_path):
        raise run_end.StartsAgainError
    assert run_end.read(tmp_path) is None


def test_a_long_reason_of_a_stranger_is_cut(tmp_path):
    (tmp_path / "run_end.json").write_text(json.dumps({"kind": "failed", "reason": "y" * 100_000}))
    assert run_end.read(tmp_path)["reason"] == "y" * 2000
