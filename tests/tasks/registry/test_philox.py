"""Random numbers against TensorFlow's kernels."""

import itertools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from limba.addons.seqio import tf_iterators
from tasks.registry import philox

# TensorFlow takes the larger ones modulo 2^31 - 1.
SEEDS = [0, 1, 7, 2**30 - 1, 123456789, 2**31 - 4, 2**31 - 1, 2**31 + 5, 2**40 + 3]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_data_sets(seed):
    expected = list(tf.data.Dataset.random(seed).take(37).as_numpy_iterator())
    assert philox.uint32s(seed, 37).tolist() == expected
    assert philox.uint32s(seed, 5).tolist() == expected[:5]


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_of_preprocessors(seed):
    with seqio.map_seed_manager(seed):
        dataset = seqio.map_over_dataset(lambda _, seed: seed, num_seeds=1)(tf.data.Dataset.range(9))
        # A second random preprocessor.
        second = seqio.map_over_dataset(lambda _, seed: seed, num_seeds=1)(tf.data.Dataset.range(9))
    for offset, pairs in ((0, dataset), (2, second)):
        expected = [(int(high) << 32) ^ int(low) for high, low in pairs.as_numpy_iterator()]
        assert list(itertools.islice(philox.seed_pairs(seed + offset), 9)) == expected


@pytest.mark.parametrize("seeds", [(0, 0), (3, 4), (2**30 - 1, 77), (2**31 + 9, 2**40 + 3)])
@pytest.mark.parametrize("count", [1, 2, 1024, 1025])
def test_uniform_numbers(seeds, count):
    expected = tf.random.stateless_uniform([count], seeds, dtype=tf.float64).numpy()
    actual = philox.stateless_uniform(seeds, count)
    assert actual.dtype == np.float64
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("size", [1, 2, 3, 50, 1000])
@pytest.mark.parametrize("seed", SEEDS)
def test_order_of_a_shuffle_buffer(size, seed):
    expected = list(tf.data.Dataset.range(size).shuffle(size, seed=seed).as_numpy_iterator())
    assert philox.permutation(size, seed).tolist() == expected


def test_hashes_of_numbers():
    """Of texts of 1 to 64 bytes: every branch of the fingerprint."""
    rng = np.random.default_rng(0)
    cases = [[0], [7], [10], [100], [1234], [12345678], [0, 0, 0, 0], [2, -1, -1, -1]]
    cases += [rng.integers(0, 10 ** rng.integers(1, 15), n).tolist() for n in rng.integers(1, 5, 400)]
    seen = set()
    for numbers in cases:
        length = len(" ".join(map(str, numbers)))
        assert length <= 64
        seen.add(0 if length < 4 else 4 if length < 8 else 8 if length <= 16 else 17 if length <= 32 else 33)
        expected = int(tf_iterators.hash_numbers(tf.constant(numbers, tf.int64)))
        assert philox.hash_numbers(numbers) == expected, numbers
    assert seen == {0, 4, 8, 17, 33}
