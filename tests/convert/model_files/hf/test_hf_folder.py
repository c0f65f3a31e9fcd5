"""Entries of a Hugging Face folder that have a file's name and are none."""

import os

import pytest

from convert.model_files.hf import hf_folder


@pytest.mark.parametrize(
    ("name", "make", "error", "found"),
    [
        ("generation_config.json", os.mkfifo, ValueError, "is a FIFO, not a file"),
        ("generation_config.json", os.mkdir, ValueError, "is a folder, not a file"),
        ("spiece.model", lambda file: file.symlink_to("../blobs/nothing"), FileNotFoundError, "is a link to"),
    ],
)
def test_what_is_no_file_does_not_count_as_missing(name, make, error, found, tmp_path):
    """Its content would be replaced by a default: another token with which the decoder begins, for example."""
    make(tmp_path / name)
    with pytest.raises(error, match=rf"{tmp_path}/{name} {found}"):
        hf_folder.check_entries(tmp_path)


def test_folders_and_files_that_nobody_reads(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "tf_model.h5").write_text("version https://git-lfs.github.com/spec/v1\n")  # a clone without its weights
    (tmp_path / "config.json").symlink_to(tmp_path / "tf_model.h5")
    hf_folder.check_entries(tmp_path)
