"""Folders that are given for a run, and are none."""

import pytest

from limba.checkpoint_files import directories


def test_an_export_is_called_so(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(
        FileNotFoundError, match=r"is a Hugging Face folder, not a run: .*`limba convert from-hf .* runs/"
    ):
        directories.find_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="holds no checkpoint_<step> directory"):
        directories.find_checkpoint(tmp_path)
