"""A folder is there complete or not at all."""

import pytest

from convert.folder import complete_or_absent


def test_appears_at_the_end(tmp_path):
    out = tmp_path / "a/b/out"
    with complete_or_absent(out) as folder:
        (folder / "file").write_text("new")
        assert not out.exists()
    assert (out / "file").read_text() == "new"
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_a_full_disk_leaves_what_was_there(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").write_text("old")
    with pytest.raises(OSError, match="No space left"), complete_or_absent(tmp_path / "out") as folder:
        (folder / "file").write_text("half")
        raise OSError(28, "No space left on device")
    assert (tmp_path / "out/file").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_two_writers_do_not_mix(tmp_path):
    with complete_or_absent(tmp_path / "out") as folder:
        (folder / "file").write_text("first")
        with pytest.raises(ValueError, match="Another process is writing"), complete_or_absent(tmp_path / "out"):
            pass
    assert (tmp_path / "out/file").read_text() == "first"
