"""A pointer of git-lfs in place of a file is named, with the command that gets the file."""

import pytest

from convert.model_files.hf import hf_tokenizer
from convert.tensors import array_files
from limba.files import untrusted_files, untrusted_json

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 1234\n"
READERS = (
    untrusted_files.check_is_file,
    untrusted_files.read_bytes,
    untrusted_json.read,
    untrusted_json.read_object,
    hf_tokenizer.read_json,
    array_files.file_size,
    lambda path: hf_tokenizer.open_model(path, None),
)


@pytest.mark.parametrize("read", READERS)
def test_a_pointer_is_named(read, tmp_path):
    (tmp_path / "file").write_text(POINTER)
    with pytest.raises(
        ValueError, match=r"file is only git-lfs's pointer to the file; run `git lfs pull` in its folder"
    ):
        read(tmp_path / "file")


def test_a_file_that_speaks_of_git_lfs_is_none(tmp_path):
    (tmp_path / "file").write_text(POINTER + " " * 1024)
    assert untrusted_files.check_is_file(tmp_path / "file") > 1024
