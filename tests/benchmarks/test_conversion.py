"""What the benchmark of conversions measures is what it says."""

import sys

import numpy as np

from benchmarks import conversion
from convert.families import heads, networks


def test_a_random_tensor_is_the_same_however_it_is_read():
    tensor = conversion.random_tensor((12, 5, 7), seed=3)
    whole = np.asarray(tensor)
    np.testing.assert_array_equal(tensor.read((slice(4, 9), slice(None), slice(2, 3))), whole[4:9, :, 2:3])
    assert np.abs(whole).max() < 0.05 and abs(whole.mean()) < 0.01 and whole.std() > 0.02
    assert not np.array_equal(whole, np.asarray(conversion.random_tensor((12, 5, 7), seed=4)))


def test_xl_is_xl():
    shapes = networks.shapes(conversion.config_of("xl"), heads.OF_T5)
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 2_849_757_184


def test_memory_of_children_counts():
    """50 MB in the process and 100 MB in its child, at the same time."""
    child = "import time; x = bytearray(b'1') * 100_000_000; time.sleep(1)"
    parent = (
        f"import subprocess, sys; x = bytearray(b'1') * 50_000_000; subprocess.run([sys.executable, '-c', {child!r}])"
    )
    result = conversion.measure([sys.executable, "-c", parent])
    assert 0.15 < result["peak_gb"] < 0.3
    assert "failed" not in result
    assert conversion.measure([sys.executable, "-c", "raise SystemExit('no')"])["failed"] == "exit code 1: ['no']"
