import errno
import json

import numpy as np
import pytest

from convert.tensors import weight_shards
from limba.checkpoint_files.saved_tensors import SavedTensor, from_array


def layout(tensors):
    """A format: each tensor's name, then its bytes; those of a tensor called `halves` in two parts."""
    segments = []
    for name, tensor in tensors.items():
        num_bytes = int(np.prod(tensor.shape)) * tensor.dtype.itemsize
        parts = (num_bytes // 2, num_bytes - num_bytes // 2) if name == "halves" else (num_bytes,)
        segments += [weight_shards.Segment(f"<{name}>".encode(), name, part) for part in parts]
    return segments


def arrays(**sizes):
    return {name: np.full(size, ord(name[0]), np.uint8) for name, size in sizes.items()}


def write(folder, arrays, shard_bytes=10**9):
    written = []
    weight_shards.write(
        folder, "w.bin", {k: from_array(v) for k, v in arrays.items()}, layout, shard_bytes, written.append
    )
    assert sum(written) == sum(x.nbytes for x in arrays.values())
    return sorted(path.name for path in folder.iterdir())


def test_one_file(tmp_path):
    assert write(tmp_path, arrays(a=3, halves=5, c=0)) == ["w.bin"]
    assert (tmp_path / "w.bin").read_bytes() == b"<a>aaa<halves>hh<halves>hhh<c>"


def test_a_tensor_in_two_segments_is_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_shards.tensor_parts, "_BLOCK_BYTES", 1)
    array = np.arange(7 * 4, dtype=np.uint8).reshape(7, 4)
    write(tmp_path, {"halves": array})
    data = array.tobytes()
    assert (tmp_path / "w.bin").read_bytes() == b"<halves>" + data[:14] + b"<halves>" + data[14:]


def test_shards_are_full_and_a_large_tensor_has_its_own(tmp_path):
    files = write(tmp_path, arrays(a=4, b=5, c=2, d=30, e=1), shard_bytes=10)
    assert files == [*(f"w-{i:05d}-of-00004.bin" for i in range(1, 5)), "w.bin.index.json"]
    assert [(tmp_path / file).read_bytes()[:3] for file in files[:4]] == [b"<a>", b"<c>", b"<d>", b"<e>"]
    index = json.loads((tmp_path / "w.bin.index.json").read_text("utf-8"))
    assert index["metadata"] == {"total_size": 42}
    assert index["weight_map"] == {
        name: f"w-{shard:05d}-of-00004.bin" for name, shard in zip("abcde", (1, 1, 2, 3, 4), strict=True)
    }


def failing(error):
    def read(index):
        raise error

    return SavedTensor((4,), np.dtype(np.uint8), read)


def test_an_interrupted_writing_goes_on_with_the_shard_at_which_it_stopped(tmp_path):
    complete = {name: from_array(array) for name, array in arrays(a=4, b=4, c=4, d=4).items()}
    with pytest.raises(KeyboardInterrupt):
        interrupted = {**complete, "d": failing(KeyboardInterrupt())}
        weight_shards.write(tmp_path, "w.bin", interrupted, layout, 8, lambda _: None)
    # The second shard is unfinished and hidden, and nothing says that the first is a model.
    assert sorted(path.name for path in tmp_path.iterdir()) == [".w-00002-of-00002.bin.part", "w-00001-of-00002.bin"]

    written = []
    again = {**complete, "a": failing(AssertionError("read again")), "b": failing(AssertionError("read again"))}
    weight_shards.write(tmp_path, "w.bin", again, layout, 8, written.append)
    assert written == [8, 4, 4]
    assert (tmp_path / "w-00001-of-00002.bin").read_bytes() == b"<a>aaaa<b>bbbb"
    assert (tmp_path / "w-00002-of-00002.bin").read_bytes() == b"<c>cccc<d>dddd"
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("content", [b"<b>aaaa", b"<a>aaa", b"<a>aaaaa"])
def test_another_file_of_that_name_is_not_kept(tmp_path, content):
    (tmp_path / "w.bin").write_bytes(content)
    write(tmp_path, arrays(a=4))
    assert (tmp_path / "w.bin").read_bytes() == b"<a>aaaa"


def test_a_full_disk_is_an_oserror_and_leaves_no_file(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weight_shards.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, arrays(a=4))
    assert not (tmp_path / "w.bin").exists()
