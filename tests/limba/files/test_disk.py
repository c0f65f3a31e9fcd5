from pathlib import Path

import pytest

from limba.files import disk


def test_a_full_disk_is_known_by_its_error():
    with pytest.raises(OSError) as full, Path("/dev/full").open("w") as file:
        file.write("x")
    assert disk.is_full(full.value)
    assert disk.is_full(
        ValueError('RESOURCE_EXHAUSTED: Failed writing: "/x" [OS error 28: ENOSPC No space left on device]')
    )
    assert not disk.is_full(FileNotFoundError(2, "No such file or directory"))


def test_free_bytes_of_a_folder_to_come(tmp_path):
    assert disk.free_bytes(tmp_path / "not" / "yet") == pytest.approx(disk.free_bytes(tmp_path), rel=0.1)
