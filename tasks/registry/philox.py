"""Random numbers as TensorFlow's kernels draw them, in NumPy: orders that were drawn there stay what they were.

Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), and FarmHash's 64-bit fingerprint
of short texts (github.com/google/farmhash, `farmhashna`).
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
# TensorFlow's seed of a graph that has none, and what it takes seeds of data sets modulo.
_GRAPH_SEED = 87654321
_SEEDS = 2**31 - 1
# The key under which it makes key and counter of a pair of seeds.
_SCRAMBLE = 0x02461E293EC8F720


def philox(key: int, counter: int, blocks: int, first: int = 0) -> np.ndarray:
    """uint32 `[4 * blocks]`: the outputs for the counters `(first + i, counter)`, all of them 64 bits, under a key."""
    number = np.arange(first, first + blocks, dtype=np.uint64)
    high = np.full(blocks, counter % 2**64, np.uint64)
    c0, c1, c2, c3 = number & _LOW, number >> _HALF, high & _LOW, high >> _HALF
    k0, k1 = np.uint64(key % 2**32), np.uint64(key % 2**64 >> 32)
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = product1 >> _HALF ^ c1 ^ k0, product1 & _LOW, product0 >> _HALF ^ c3 ^ k1, product0 & _LOW
        k0, k1 = k0 + _WEYL[0] & _LOW, k1 + _WEYL[1] & _LOW
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32).ravel()


def uint32s(seed: int, count: int) -> np.ndarray:
    """uint32 `[count]`: the values of `tf.data.Dataset.random(seed)`."""
    return philox(_GRAPH_SEED, seed % _SEEDS, -(-count // 4))[:count]


def seed_pairs(seed: int) -> Iterator[int]:
    """The seeds that `seqio.map_over_dataset(num_seeds=1)` gives under `map_seed_manager(seed)`, a pair as 64 bits."""
    for first in itertools.count():
        high, low = (philox(_GRAPH_SEED, (seed + i) % _SEEDS, 1, first).tolist() for i in range(2))
        yield from (a << 32 ^ b for a, b in zip(high, low, strict=True))


def stateless_uniform(seeds: tuple[int, int], count: int) -> np.ndarray:
    """float64 `[count]` in [0, 1): `tf.random.stateless_uniform([count], seeds, dtype=tf.float64)`."""
    mixed = philox(_SCRAMBLE, seeds[1], 1, first=seeds[0]).astype(object)
    bits = philox(int(mixed[0] | mixed[1] << 32), int(mixed[2] | mixed[3] << 32), -(-count // 2)).astype(np.uint64)
    mantissa = (bits[::2] & np.uint64(0xFFFFF)) << _HALF | bits[1::2]
    return (mantissa * 2.0**-52)[:count]


def permutation(size: int, seed: int) -> np.ndarray:
    """int64 `[size]`: the order of `tf.data.Dataset.range(size).shuffle(size, seed=seed)` in its first pass."""
    first, second = uint32s(seed, 2).tolist()
    draws = philox(first, second, -(-size // 4))[:size]
    order = np.arange(size)
    steps = np.arange(size)
    for place, other in enumerate((steps + draws % (size - steps)).tolist()):
        order[place], order[other] = order[other], order[place]
    return order


# ------------------------------------------------------ FarmHash ------------------------------------------------------

_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_MASK = 2**64 - 1


def hash_numbers(numbers: Sequence[int]) -> int:
    """A number below 2^30 that follows from others: `tf.strings.to_hash_bucket_fast` of them, with spaces between."""
    return _fingerprint(" ".join(map(str, numbers)).encode()) % 2**30


def _fingerprint(text: bytes) -> int:
    """FarmHash's fingerprint of at most 64 bytes."""
    length = len(text)
    mul = (_K2 + 2 * length) & _MASK

    def fetch(start: int, size: int = 8) -> int:
        start = start if start >= 0 else length + start
        return int.from_bytes(text[start : start + size], "little")

    def combine(u: int, v: int) -> int:
        a = (u ^ v) * mul & _MASK
        b = (v ^ a ^ a >> 47) * mul & _MASK
        return (b ^ b >> 47) * mul & _MASK

    if length < 4:
        y, z = text[0] + (text[length // 2] << 8), length + (text[-1] << 2)
        mixed = (y * _K2 ^ z * _K0) & _MASK
        return (mixed ^ mixed >> 47) * _K2 & _MASK
    if length < 8:
        return combine(length + (fetch(0, 4) << 3), fetch(-4, 4))
    if length <= 16:
        a, b = fetch(0) + _K2 & _MASK, fetch(-8)
        return combine(_rotate(b, 37) * mul + a & _MASK, (_rotate(a, 25) + b) * mul & _MASK)
    assert length <= 64
    scale = _K1 if length <= 32 else _K2
    a, b, c, d = fetch(0) * scale & _MASK, fetch(8), fetch(-8) * mul & _MASK, fetch(-16) * _K2 & _MASK
    y = _rotate(a + b, 43) + _rotate(c, 30) + d & _MASK
    z = combine(y, a + _rotate(b + _K2, 18) + c & _MASK)
    if length <= 32:
        return z
    e, f, g, h = fetch(16) * mul & _MASK, fetch(24), (y + fetch(-32)) * mul & _MASK, (z + fetch(-24)) * mul & _MASK
    return combine(_rotate(e + f, 43) + _rotate(g, 30) + h & _MASK, e + _rotate(f + a, 18) + g & _MASK)


def _rotate(value: int, shift: int) -> int:
    value &= _MASK
    return (value >> shift | value << 64 - shift) & _MASK
