"""The small files of a checkpoint: what their list may name."""

import json
import zlib

import pytest

from limba.checkpoint_files import small_files


@pytest.mark.parametrize("name", ["lost", "../theirs", "../../theirs", ".."])
def test_a_list_names_files_of_its_directory_alone(tmp_path, name):
    """An empty file has the CRC-32 0: written elsewhere, it would empty what is there."""
    (tmp_path / "theirs").write_text("theirs")
    small_files.write_files(tmp_path / "run", {"run.json": b"{}"})
    assert small_files.read_files(tmp_path / "run") == {"run.json": b"{}"}
    (tmp_path / "run" / "checksums-0.json").write_text(json.dumps({"run.json": zlib.crc32(b"{}"), name: 0}))
    with pytest.raises(ValueError, match="is damaged or missing: take another checkpoint"):
        small_files.read_files(tmp_path / "run")
