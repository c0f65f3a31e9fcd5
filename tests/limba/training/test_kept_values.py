"""Initial values of an earlier start: what somebody else may have put in their place is not read."""

import logging

import numpy as np
import pytest

from limba.checkpoint_files.directories import START_VALUES
from limba.training import kept_arrays, kept_values


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_values_are_read_and_packed_ones_are_not(tmp_path, caplog, write):
    """What is packed may be larger than any memory."""
    file = tmp_path / START_VALUES
    write(file, **{kept_arrays.FACTS: "facts", "layer/kernel": np.ones(3)})
    with caplog.at_level(logging.WARNING):
        found = kept_values._read(file, "facts")
    if write is np.savez:
        np.testing.assert_array_equal(found["layer"]["kernel"], np.ones(3))
    else:
        assert found is None and f"{file} " in caplog.text and "it is packed" in caplog.text
    assert kept_values._read(file, "other facts") is None
