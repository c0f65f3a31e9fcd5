"""Pickles read as Python reads them, and those that cost Python's unpickler hours or gigabytes."""

import collections
import io
import pickle
import struct
import time
import tracemalloc

import pytest

from limba.addons.torch_files import tensor_pickles, torch_files

VALUES = {
    "numbers": [0, 1, -1, 255, 256, 65536, -70000, 2**40, -(2**70), 2.5, -1e300, True, False, None],
    "texts": ["", "a", "ä\n\\'", "x" * 300],
    "nested": {"a": {"b": [1, (2,), (3, 4), (5, 6, 7), (8, 9, 10, 11), ()]}, 7: {}, None: []},
    "ordered": collections.OrderedDict([("b", 1), ("a", collections.OrderedDict())]),
    "shared": [["x"]] * 3,
}


def load(data):
    return tensor_pickles.load(io.BytesIO(data), len(data))[0]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_what_python_reads(protocol):
    assert load(pickle.dumps(VALUES, protocol)) == VALUES
    many = {str(i): [i, float(i)] for i in range(3000)}
    assert load(pickle.dumps(many, protocol)) == many


def test_what_is_of_no_use_is_passed_over():
    found = load(pickle.dumps({"set": {1, 2}, "frozen": frozenset("ab"), "bytes": b"abc", "huge": 7**200, (1, 2): 3}))
    kinds = [type(value) for value in found.values()]
    assert kinds == [*[tensor_pickles.Unread] * 4, int] and list(found)[:4] == ["set", "frozen", "bytes", "huge"]


def test_texts_of_python_2():
    assert load(b"\x80\x02}q\x00U\x01aq\x01T\x02\x00\x00\x00\xc3\xa4q\x02s.") == {"a": "ä"}
    assert load(b"(dp0\nS'a'\np1\nI01\ns.") == {"a": True}


def doubled(levels, last):
    """A tuple of the tuple before, twice: 2**levels in all. Python hashes and prints each of them."""
    return b"\x80\x02K\x01K\x02\x86" + b"2\x86" * levels + last


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x02Nr\xff\xff\xff\x1f.", None),  # LONG_BINPUT: a memo of 4 GB
        (b"\x80\x02}" + doubled(200, b"K\x01s.")[2:], None),  # as a key
        (doubled(200, b"R."), "a call of|takes what"),  # in a message
        (doubled(200, b"Q."), "a storage called a tuple of 2"),
        (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".", "1,099,511,627,776 bytes are asked for"),  # BYTEARRAY8
        (b"\x80\x04\x8d" + struct.pack("<Q", 2**63 - 1) + b".", "bytes are asked for"),  # BINUNICODE8
        (b"I" + b"9" * 5000 + b"\n.", "ValueError"),
        (b"\x80\x02" + b"N0" * 10_001 + b".", "more than 20,000 instructions"),
        (b"\x80\x02]" + b"]" * 9_000 + b"a" * 9_000 + b".", None),  # lists in lists
        # A table of 1000 items, copied 1000 times.
        (
            b"\x80\x02ccollections\nOrderedDict\nq\x000](" + b"K\x01K\x02\x86" * 1000 + b"e\x85q\x01"
            + b"0h\x00h\x01R" * 1000 + b".",
            "copies the same tables again",
        ),
        (b"\x80\x02h\x05.", "KeyError"),
        (b"\x80\x02", "1 bytes are asked for"),
        (b"\x80\x02.", "IndexError"),
        (b"\x80\x02\x8c\x01a\x8c\x01b\x93.", None),
        (b"\x80\x02(\x85.", "takes what is not there"),
        (b"\x80\x02P1\n.", "PERSID|instruction"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value,
)  # fmt: skip
def test_no_pickle_costs_more_than_its_bytes(data, words, monkeypatch):
    monkeypatch.setattr(tensor_pickles, "_MOST_INSTRUCTIONS", 20_000)
    tracemalloc.start()
    began = time.process_time()
    try:
        load(data)
        assert words is None
    except tensor_pickles.NotAllowedError as error:
        assert str(error) == "a.b"
    except pickle.UnpicklingError as error:
        assert words is not None and len(str(error)) < 300
        assert any(word in str(error) for word in words.split("|")), error
    assert time.process_time() - began < 5
    assert tracemalloc.get_traced_memory()[1] < 5e6 + 100 * len(data)
    tracemalloc.stop()


def test_a_shape_of_many_dims_is_refused():
    shape = b"(" + b"K\x01" * 65 + b"t"
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ"
    data = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + shape + shape + b"tR."
    with pytest.raises(pickle.UnpicklingError, match="a tensor with the dims a tuple of 65"):
        load(data)


def test_a_table_that_is_its_own_model_is_no_model(tmp_path):
    content: dict = {}
    content["model"] = content
    path = tmp_path / "pytorch_model.bin"
    magic = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, content, [])]
    path.write_bytes(b"".join(magic))
    with pytest.raises(ValueError, match="has 'model' of type dict among its tensors"):
        torch_files.open_tensors([path])
