"""The independent forward pass: its position buckets are T5's at every distance, its readers agree."""

import numpy as np
import pytest

from convert.compare import numpy_t5
from limba.checkpoint_files.saved_tensors import from_array
from limba.network.attention import relative_position_bucket


@pytest.mark.parametrize("bidirectional", [False, True])
def test_position_buckets(bidirectional):
    positions = np.arange(-600, 601)
    ours = relative_position_bucket(positions, bidirectional, 32, 128)
    theirs = [numpy_t5._bucket(int(p), bidirectional, 32, 128) for p in positions]
    np.testing.assert_array_equal(np.asarray(ours), theirs)


def test_both_readers_find_the_same_kernel():
    kernel = np.arange(6.0).reshape(2, 3)
    torch = numpy_t5.TorchWeights({"lm_head.weight": from_array(kernel.T)})
    flax = numpy_t5.FlaxWeights({"lm_head/kernel": from_array(kernel)})
    np.testing.assert_array_equal(torch.kernel("lm_head"), flax.kernel("lm_head"))
