"""Initial values of an earlier start: what somebody else may have put in their place is not read."""

import logging
import struct
import types
import zipfile

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


_HUGE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 40 + b",)}"


@pytest.mark.parametrize("header", [b"(((", b"  x\n y", b"{[]: 1}", _HUGE])
def test_arrays_with_any_header_are_made_again(tmp_path, caplog, header):
    """NumPy's reader has other errors for them than for other damages, and they ended the training."""
    file = tmp_path / START_VALUES
    content = b"\x93NUMPY\1\0" + struct.pack("<H", len(header) + 1) + header + b"\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{kept_arrays.FACTS}.npy", content)
    assert kept_values._read(file, "facts") is None and f"{file} is damaged" in caplog.text


def test_an_encrypted_archive_is_made_again(tmp_path, caplog):
    file = tmp_path / START_VALUES
    np.savez(file, **{kept_arrays.FACTS: "facts"})
    content = bytearray(file.read_bytes())
    content[6] = content[content.index(b"PK\1\2") + 8] = 1
    file.write_bytes(content)
    assert kept_values._read(file, "facts") is None and "is encrypted" in caplog.text


@pytest.mark.parametrize(
    "arrays",
    [{}, {"a/x": np.ones(3, "f4")}, {"a": np.ones(2, "f4")}, {"a": np.ones(3, "f4"), "b": np.ones(3, "f4")}]
    + [{"a": np.ones(3, kind)} for kind in ("f8", "U1", "c8", "M8[s]", [("x", "f4")])],
)
def test_values_of_another_network_are_named(tmp_path, arrays):
    params, model = {"a": np.zeros(3, np.float32)}, types.SimpleNamespace(module=None)
    made = lambda params, model, dataset: {"a": params["a"] + 1}  # noqa: E731
    change = kept_values.change(made, model, None, {}, tmp_path)
    for _ in range(2):
        np.testing.assert_array_equal(change(params)["a"], np.ones(3))
    with np.load(tmp_path / START_VALUES) as found:
        facts = str(found[kept_arrays.FACTS])
    kept_arrays.write(tmp_path / START_VALUES, facts, arrays)
    with pytest.raises(
        ValueError, match=f"^{tmp_path / START_VALUES} has no initial values of this network .*remove it"
    ):
        change(params)
