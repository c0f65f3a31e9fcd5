"""A folder is there complete or not at all."""

import json
import os

import pytest

from limba.files import output_folder
from limba.files.output_folder import REPORT, complete_or_absent, fingerprint, read_report


def test_appears_at_the_end(tmp_path):
    out = tmp_path / "a/b/out"
    with complete_or_absent(out, {}) as folder:
        (folder / "file").write_text("new")
        assert not out.exists()
    assert [p.name for p in out.iterdir()] == ["file"]
    assert (out / "file").read_text() == "new"
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_a_full_disk_leaves_what_was_there(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").write_text("old")
    with pytest.raises(OSError, match="No space left"), complete_or_absent(tmp_path / "out", {}) as folder:
        (folder / "file").write_text("half")
        raise OSError(28, "No space left on device")
    assert (tmp_path / "out/file").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_link_in_place_of_unfinished_files_removes_nothing_elsewhere(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/file").write_text("mine")
    (tmp_path / ".out.unfinished").symlink_to("home")
    with pytest.raises(ValueError, match=r"\.out\.unfinished is a link to home"):
        complete_or_absent(tmp_path / "out", {}).__enter__()
    assert (tmp_path / "home/file").read_text() == "mine"


def test_two_writers_do_not_mix(tmp_path):
    with complete_or_absent(tmp_path / "out", {}) as folder:
        (folder / "file").write_text("first")
        with pytest.raises(ValueError, match="Another process is writing"), complete_or_absent(tmp_path / "out", {}):
            pass
    assert (tmp_path / "out/file").read_text() == "first"


@pytest.mark.parametrize(("request_", "there"), [({"dtype": "float32"}, True), ({"dtype": "bfloat16"}, False)])
def test_what_was_interrupted_is_gone_on_with_if_it_is_the_same(tmp_path, request_, there):
    with pytest.raises(KeyboardInterrupt), complete_or_absent(tmp_path / "out", {"dtype": "float32"}) as folder:
        (folder / "first").write_text("done")
        raise KeyboardInterrupt
    assert not (tmp_path / "out").exists()
    with complete_or_absent(tmp_path / "out", request_) as folder:
        assert (folder / "first").exists() == there
    assert (tmp_path / "out/first").exists() == there
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_the_fingerprint_notices_a_file_that_was_touched(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").write_text("1")
    before = fingerprint(tmp_path / "a")
    assert fingerprint(tmp_path / "a", None) == before
    os.utime(tmp_path / "a/b", ns=(1, 1))
    assert fingerprint(tmp_path / "a") != before


def test_a_report_knows_its_files_and_itself(tmp_path):
    for name in ("a", "README.md"):
        (tmp_path / name).write_text(name)
    report = output_folder.sealed(tmp_path, {"step": 3}, ["a", "README.md"])
    file = tmp_path / REPORT
    file.write_text(json.dumps(report, indent=3))
    assert output_folder.changed(tmp_path, read_report(tmp_path)) == []
    assert output_folder.changed(tmp_path, report | {"step": 4}) == [REPORT]
    assert output_folder.changed(tmp_path, report | {"sha256": {}}) == [REPORT]
    assert output_folder.changed(tmp_path, {"step": 3}) is None
    for name in ("a", "README.md"):
        (tmp_path / name).write_text("x")
    assert sorted(output_folder.changed(tmp_path, report)) == ["README.md", "a"]


@pytest.mark.parametrize(
    "wrong",
    [{"format": []}, {"formats": 5}, {"step": 2**31}, {"step": "3"}, {"files": ["../a"]}, {"sha256": {"/etc/x": ""}}],
)
def test_a_report_of_other_values_is_damaged(tmp_path, wrong):
    (tmp_path / REPORT).write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match=rf"{REPORT} is damaged: {next(iter(wrong))} is .*; it is a"):
        read_report(tmp_path)


def test_a_damaged_report_is_replaced_with_overwrite_alone(tmp_path):
    (tmp_path / REPORT).write_text('{"files": "of an earlier version"}')
    assert output_folder.previous(tmp_path, {"dtype": "float32"}, overwrite=True) is None
    with pytest.raises(ValueError, match="is damaged: files is 'of an earlier version'"):
        output_folder.previous(tmp_path, {"dtype": "float32"}, overwrite=False)
