"""Tensors in parts: what is read, how much of it at a time, and in which order."""

import jax.numpy as jnp
import numpy as np
import pytest

from convert.tensors import tensor_parts
from limba.checkpoint_files.saved_tensors import SavedTensor, from_array


def counted(array: np.ndarray) -> tuple[SavedTensor, list[int]]:
    """A tensor that writes down how many numbers each read takes."""
    sizes: list[int] = []

    def read(index):
        sizes.append(array[index].size)
        return array[index]

    return SavedTensor(array.shape, array.dtype, read), sizes


def test_blocks_are_the_tensor_in_at_most_four_parts(monkeypatch):
    monkeypatch.setattr(tensor_parts, "_BLOCK_BYTES", 64)
    array = np.arange(120, dtype=np.float32).reshape(12, 10)
    tensor, sizes = counted(array)
    parts = list(tensor_parts.blocks(tensor))
    np.testing.assert_array_equal(np.concatenate(parts), array)
    assert sizes == [30, 30, 30, 30]
    monkeypatch.setattr(tensor_parts, "_BLOCK_BYTES", 1000)
    assert len(list(tensor_parts.blocks(tensor))) == 1


def test_a_transposed_tensor_is_read_in_parts_too(monkeypatch):
    monkeypatch.setattr(tensor_parts, "_BLOCK_BYTES", 64)
    array = np.arange(120, dtype=np.float32).reshape(12, 10)
    tensor, sizes = counted(array)
    parts = list(tensor_parts.blocks(tensor_parts.transposed(tensor)))
    np.testing.assert_array_equal(np.concatenate(parts), array.T)
    assert all(part.flags.c_contiguous for part in parts)
    assert max(sizes) == 24


@pytest.mark.parametrize("shape", [(), (3,), (0, 4)])
def test_small_ones_are_one_part(shape):
    array = np.zeros(shape, np.float32)
    (part,) = tensor_parts.blocks(from_array(array))
    assert part.shape == shape


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers_that_are_not_finite_are_found_when_read(dtype):
    cast = tensor_parts.cast(from_array(np.array([1.0, np.inf], np.float32)), jnp.dtype(dtype), "encoder/wo")
    assert cast.dtype == jnp.dtype(dtype)
    assert cast.read((slice(0, 1),)) == 1
    with pytest.raises(ValueError, match="encoder/wo holds NaN or infinite values"):
        cast.read((slice(None),))


def test_a_number_beyond_bfloat16_is_found():
    largest = np.array([np.finfo(np.float32).max], np.float32)  # Rounds to infinity.
    with pytest.raises(ValueError, match="infinite"):
        tensor_parts.cast(from_array(largest), jnp.dtype("bfloat16"), "x").read((slice(None),))


def test_equal():
    a = from_array(np.arange(6.0).reshape(2, 3))
    assert tensor_parts.equal(a, from_array(np.arange(6.0).reshape(2, 3)))
    assert not tensor_parts.equal(a, from_array(np.arange(6.0).reshape(3, 2)))
    assert not tensor_parts.equal(a, from_array(np.arange(6.0).reshape(2, 3) + 1e-12))
    assert tensor_parts.num_bytes(a) == 48


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        ([1, 0, *range(2, 10)], [4, 4, 32]),  # two ids exchanged: three reads, and nothing twice
        ([-1, -1, 0, 1, 2], [4, 4, 12]),  # rows of zeros are as wide as a row that is read
        ([*range(9, -1, -1)] * 3, [40]),  # too many runs
        ([5], [4]),
    ],
)
def test_chosen_rows_are_read_in_runs(rows, sizes):
    array = np.arange(1, 41, dtype=np.float32).reshape(10, 4)
    tensor, found = counted(array)
    chosen = tensor_parts.chosen(tensor, np.array(rows))
    expected = np.concatenate([array, np.zeros((1, 4), np.float32)])[rows]
    np.testing.assert_array_equal(np.asarray(chosen), expected)
    assert found == sizes
    for span in (slice(0, 1), slice(1, 3), slice(3, None)):
        np.testing.assert_array_equal(chosen.read((span, slice(1, 3))), expected[span, 1:3])
