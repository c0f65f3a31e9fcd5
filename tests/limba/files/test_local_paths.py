import os

import pytest

from limba.files import local_paths
from limba.files.local_paths import local_path


def test_paths_without_dots_and_tilde(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    assert local_path("a/b") == tmp_path / "a" / "b"
    assert local_path("a/../b/") == tmp_path / "b"
    assert local_path("~/x") == tmp_path / "home" / "x"
    assert local_path("link/x") == tmp_path / "link" / "x", "as it was given"
    assert local_path("link/../x") == tmp_path / "far" / "x", "as the shell reads it"


@pytest.mark.parametrize("name", ["~", "a..b", "..."])
def test_names_that_only_look_alike(name, tmp_path):
    assert local_path(tmp_path / name / "x") == tmp_path / name / "x"


@pytest.mark.parametrize(("path", "shown"), [(None, "None"), (5, "5"), (["a"], "a list of 1"), ("a\0b", r"'a\\x00b'")])
def test_what_is_no_path_is_named(path, shown):
    with pytest.raises(ValueError, match=rf"A path is {shown}; give the name of a file or folder as a text"):
        local_path(path)


def test_a_cache_that_others_may_write_is_not_used(tmp_path, monkeypatch, caplog):
    """What is kept there is believed, and compiled programs of it run."""
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    folder = tmp_path / "cache/limba/counts"
    before = os.umask(0)
    try:
        assert local_paths.cache_folder("counts", environ) == folder
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        folder.mkdir(0o755)
        assert local_paths.cache_folder("counts", environ) == folder
        for wrong, mode in ((folder, 0o775), (folder.parent, 0o702)):
            wrong.chmod(mode)
            assert local_paths.cache_folder("counts", environ) is None
            assert f"{wrong} is not used, because others may write into it (its mode is {mode:o})" in caplog.text
            wrong.chmod(0o700)
    finally:
        os.umask(before)
    monkeypatch.setattr(os, "geteuid", lambda: 1 + folder.stat().st_uid)
    monkeypatch.setattr(local_paths, "_ROOT", -1)
    assert local_paths.cache_folder("counts", environ) is None
    assert f"{folder.parent} is not used, because it belongs to another user" in caplog.text
