import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from convert.tensors import array_files
from convert.tensors.array_files import Extent


def stored(path, array, offset=24, pieces=1):
    """The array as a file holds it, in pieces of equal numbers of elements that lie apart."""
    data, content, extents = array.tobytes(), b"x" * offset, []
    length = max(1, -(-array.size // pieces) * array.itemsize)
    for start in range(0, len(data), length):
        extents.append(Extent(len(content), len(data[start : start + length])))
        content += data[start : start + length] + b"apart"
    path.write_bytes(content)
    return array_files.saved_tensor(path, extents, array.shape, array.dtype)


INDEXES = [
    (slice(None), slice(None), slice(None)),
    (slice(2, 5), slice(None), slice(None)),
    (slice(None), slice(1, 3), slice(None)),
    (slice(None), slice(None), slice(3, 4)),
    (slice(1, 6, 2), slice(None), slice(0, 5)),
    (slice(-2, None), slice(0, 3, 2), slice(-4, -1)),
    (slice(3, 3), slice(None), slice(None)),
]


@pytest.mark.parametrize("index", INDEXES, ids=str)
@pytest.mark.parametrize("group_bytes", [1, 100, 2**26])
@pytest.mark.parametrize("pieces", [1, 4])
def test_a_part_is_what_numpy_cuts_out(tmp_path, monkeypatch, index, group_bytes, pieces):
    monkeypatch.setattr(array_files, "GROUP_BYTES", group_bytes)
    array = np.arange(7 * 3 * 5, dtype=np.float32).reshape(7, 3, 5)
    part = stored(tmp_path / "file", array, pieces=pieces).read(index)
    np.testing.assert_array_equal(part, array[index])
    assert part.flags.c_contiguous and part.dtype == np.float32


@pytest.mark.parametrize("shape", [(), (0, 4), (4, 0), (6,)])
def test_shapes_without_rows(tmp_path, shape):
    array = np.ones(shape, ml_dtypes.bfloat16)
    part = np.asarray(stored(tmp_path / "file", array))
    assert part.dtype == array.dtype and part.shape == shape
    np.testing.assert_array_equal(part, array)


def test_memory_is_for_the_part_and_one_group(tmp_path, monkeypatch):
    monkeypatch.setattr(array_files, "GROUP_BYTES", 2**20)
    array = np.random.default_rng(0).normal(size=(4096, 1024)).astype(np.float32)
    tensor = stored(tmp_path / "file", array)
    tracemalloc.start()
    part = tensor.read((slice(None), slice(512, 768)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(part, array[:, 512:768])
    assert part.nbytes == 4 * 2**20
    assert peak < part.nbytes + 2**20 + 2**16


def test_a_file_that_became_shorter_is_named(tmp_path):
    tensor = stored(tmp_path / "file", np.ones((10, 10), np.float32))
    with (tmp_path / "file").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(ValueError, match=r"file is cut short: 424 bytes expected, 100 found"):
        np.asarray(tensor)


def test_a_pointer_of_git_lfs_is_no_weights(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 990170001\n", "utf-8")
    with pytest.raises(ValueError, match="git lfs pull"):
        array_files.file_size(path)
