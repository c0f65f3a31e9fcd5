import json

import jax.numpy as jnp
import ml_dtypes
import msgpack
import numpy as np
import pytest
from flax import serialization, traverse_util

from convert.tensors import array_files, flax_files
from limba.checkpoint_files import msgpack_arrays
from limba.checkpoint_files.saved_tensors import from_array
from limba.files.untrusted_files import shown

RNG = np.random.default_rng(0)
ARRAYS = {
    "encoder/block/0/kernel": RNG.normal(size=(12, 8)).astype(np.float32),
    "encoder/block/0/scale": RNG.normal(size=300).astype(ml_dtypes.bfloat16),
    "encoder/empty": np.zeros((0, 4), np.float32),
    "encoder/scalar": np.array(3.5, np.float32),
    "half": RNG.normal(size=(3, 5)).astype(np.float16),
    "long": RNG.normal(size=(70, 300)),
}
SMALL_CHUNK = 1000


def tree(arrays):
    return traverse_util.unflatten_dict(arrays, sep="/")


def write(folder, arrays, shard_bytes=10**9):
    folder.mkdir(exist_ok=True)
    flax_files.write(folder, {k: from_array(v) for k, v in arrays.items()}, lambda _: None, shard_bytes)
    return sorted(folder.glob("*.msgpack"))


def written_by_flax(folder, content):
    path = folder / "flax_model.msgpack"
    path.write_bytes(serialization.msgpack_serialize(content))
    return path


def assert_same(tensors, arrays):
    assert tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        assert tensors[name].dtype == array.dtype and tensors[name].shape == array.shape, name
        assert np.asarray(tensors[name]).tobytes() == array.tobytes(), name


@pytest.fixture(params=[None, SMALL_CHUNK], ids=["whole", "chunked"])
def chunk_size(request, monkeypatch):
    """Flax's own, and one that splits some arrays: twelve pieces and more, the last one short."""
    if request.param:
        monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", request.param)


def test_what_flax_writes_is_read(tmp_path, chunk_size):
    path = written_by_flax(tmp_path, tree(ARRAYS) | {"jax": jnp.ones(3)})
    assert_same(flax_files.open_tensors([path]), ARRAYS | {"jax": np.ones(3, np.float32)})


def test_flax_reads_what_is_written(tmp_path, chunk_size):
    (path,) = write(tmp_path, ARRAYS)
    assert path.name == "flax_model.msgpack"
    restored = traverse_util.flatten_dict(serialization.msgpack_restore(path.read_bytes()), sep="/")
    assert_same({name: from_array(array) for name, array in restored.items()}, ARRAYS)
    assert_same(flax_files.open_tensors([path]), ARRAYS)


def test_files_are_flax_s_own_byte_for_byte(tmp_path):
    arrays = {name: array for name, array in ARRAYS.items() if array.shape}
    (path,) = write(tmp_path, arrays)
    assert path.read_bytes() == serialization.msgpack_serialize(tree(arrays))


def test_chunks_are_only_found_where_they_are_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", SMALL_CHUNK)
    (path,) = write(tmp_path, {"a": np.zeros(SMALL_CHUNK, np.float16), "b": np.zeros(SMALL_CHUNK // 4, np.float32)})
    content = msgpack.unpackb(path.read_bytes())
    assert list(content["a"]["chunks"]) == ["0", "1"] and content["a"]["shape"] == {"0": SMALL_CHUNK}
    assert isinstance(content["b"], msgpack.ExtType)


def test_a_part_of_a_chunked_array(tmp_path, monkeypatch):
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", SMALL_CHUNK)
    monkeypatch.setattr(array_files, "GROUP_BYTES", 5000)
    long = flax_files.open_tensors(write(tmp_path, ARRAYS))["long"]
    for index in [(slice(3, 50), slice(None)), (slice(None), slice(7, 9)), (slice(69, 70), slice(299, 300))]:
        np.testing.assert_array_equal(long.read(index), ARRAYS["long"][index])


def test_opening_does_not_read_arrays(tmp_path):
    array = np.zeros(50 * 2**20, np.uint8).view(np.float32)
    (path,) = write(tmp_path, {"a/large": array, "a/small": np.ones(2, np.float32)})
    read = []
    with path.open("rb") as file:
        reader = msgpack_arrays._Reader(file, path.stat().st_size, "file", "file")
        original = reader._read
        reader._read = lambda length: read.append(length) or original(length)
        reader.tree()
    assert sum(read) < 100


def test_shards_come_back(tmp_path):
    files = write(tmp_path, ARRAYS, shard_bytes=1000)
    assert [file.name for file in files] == [f"flax_model-{i:05d}-of-00003.msgpack" for i in (1, 2, 3)]
    index = json.loads((tmp_path / "flax_model.msgpack.index.json").read_text("utf-8"))
    assert index["weight_map"]["encoder/block/0/scale"] == files[0].name
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in ARRAYS.values())
    assert_same(flax_files.open_tensors(files), ARRAYS)
    with pytest.raises(
        ValueError, match=r"00001-of-00003\.msgpack has a tensor that another of .* too: encoder/block/0/kernel"
    ):
        flax_files.open_tensors([*files, files[0]])


def test_transformers_loads_shards(tmp_path, flax_t5):
    from transformers.utils import FLAX_WEIGHTS_INDEX_NAME
    from transformers.utils.hub import get_checkpoint_shard_files

    arrays = {name: array for name, array in ARRAYS.items() if array.dtype != ml_dtypes.bfloat16}
    write(tmp_path, arrays, shard_bytes=1000)
    files, facts = get_checkpoint_shard_files(str(tmp_path), str(tmp_path / FLAX_WEIGHTS_INDEX_NAME))
    assert facts["all_checkpoint_keys"] and set(facts["all_checkpoint_keys"]) == arrays.keys()
    loaded = traverse_util.flatten_dict(flax_t5.load_flax_sharded_weights(files), sep="/")
    assert_same({name: from_array(array) for name, array in loaded.items()}, arrays)


def test_a_file_that_is_cut_short_says_by_how_much(tmp_path):
    (path,) = write(tmp_path, ARRAYS)
    whole = path.read_bytes()
    for length in (0, 1, 20, 60, 1000, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=rf"flax_model\.msgpack is cut short: .* expected, {length:,} found"):
            flax_files.open_tensors([path])
    with pytest.raises(ValueError, match=f"{len(whole):,} bytes expected"):
        flax_files.open_tensors([path])
    path.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match=rf"damaged: {len(whole):,} bytes expected, {len(whole) + 1:,} found"):
        flax_files.open_tensors([path])


EVERY_KIND = [
    *[None, True, False, 0, 127, -1, -32, 200, 2**15, 2**31, 2**40, -100, -(2**14), -(2**30), -(2**40), 0.5],
    *["x", "x" * 40, "x" * 300, "x" * 70_000, b"x", b"x" * 300, b"x" * 70_000],
    *[[1, 2], list(range(20)), list(range(70_000))],
]


@pytest.mark.parametrize("value", EVERY_KIND, ids=lambda value: f"{type(value).__name__}-{value!r:.12}")
def test_what_is_no_array_is_named(tmp_path, value):
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(msgpack.packb({"a": {"b": value}}))
    with pytest.raises(ValueError) as error:
        flax_files.open_tensors([path])
    assert f"{path}: a/b is {shown(value)} and no array" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": {"step": np.int32(3)}}, "a/step is a single number"),
        ({"a": 1 + 2j}, "a is a complex number"),
        ({"ids": np.arange(3)}, "ids is int64; weights are one of"),
        (np.ones(3), "is not a file of Flax weights: it holds"),
        ({"a/b": np.ones(3)}, "a/b is a key with a slash, where Flax finds no weights"),
    ],
)
def test_what_flax_writes_besides_arrays_is_named(tmp_path, content, message):
    with pytest.raises(ValueError, match=rf"flax_model\.msgpack.*{message}"):
        flax_files.open_tensors([written_by_flax(tmp_path, content)])


def extension(*values):
    return msgpack.ExtType(1, b"".join(map(msgpack.packb, values)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xc1", r"its begin has the byte 0xc1"),
        (b"\x81\xa1\xff\x00", "a text that is not UTF-8"),
        (b"\x81\xa1a\xdd\x02\xfa\xf0\x80" + b"\0" * 100, "a has a list of 50,000,000 values, more than may follow"),
        (b"\x81\xa1a" + b"\xdd\x00\x0f\x00\x00" * 3, "a has a list of 983,040 values"),
        (b"\xdf\xff\xff\xff\xff", "its begin has a map of 8,589,934,590 values"),
        (b"\x81\xd9\xff" + b"a" * 255 + (b"\x81\xd9\xff" + b"a" * 255) * 4, "a name of more than 1,024 characters"),
        (msgpack.packb({"a": msgpack.ExtType(1, b"\x93\xdc\x00\x50" + b"\x01" * 80 + b"\xa1x\xc4\x00")}), "begin with"),
        (b"\x91" * 100, "too many lists in one another"),
        (b"\x81\xa1a" * 100, "too many maps in one another"),
        (msgpack.packb({1: 2}), "the key 1"),
        (b"\x82\xa1a\x00\xa1a\x00", "the key 'a'"),
        (msgpack.packb({"a": msgpack.ExtType(9, b"xx")}), "a is an extension of type 9"),
        (msgpack.packb({"a": extension([1], "float32")}), "is damaged|cut short"),
        (msgpack.packb({"a": extension(([3], "float32", b"x" * 8))}), r"a, float32 \[3\], has 8 bytes"),
        (msgpack.packb({"a": extension(([-3], "float32", b"x" * 8))}), "a has an array that does not begin with shape"),
        (msgpack.packb({"a": extension(([2], "float32", b"x" * 8), 0)}), "an array of 8 bytes where 9 are"),
    ],
)
def test_damage_is_named(tmp_path, content, message):
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"flax_model\.msgpack.*({message})"):
        flax_files.open_tensors([path])


def _piece(*array):
    return msgpack.ExtType(1, msgpack.packb([array[0], "float32", array[1]]))


def test_a_damaged_map_of_chunks_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 8)
    chunked = serialization._chunk(np.arange(5, dtype=np.float32))
    for damage in (
        {"chunks": {}},
        {"shape": {"0": -1}},
        {"chunks": {"0": 3}},
        {"chunks": {"1": np.ones(5)}},
        {"shape": 5},
        {"chunks": {**chunked["chunks"], "0": _piece([1], b"x" * 8)}},
        {"chunks": {**chunked["chunks"], "0": _piece([2, 1], b"x" * 8)}},
    ):
        path = written_by_flax(tmp_path, {"a": chunked | damage})
        with pytest.raises(ValueError, match="a has chunks that make no array"):
            flax_files.open_tensors([path])
    path = written_by_flax(tmp_path, {"a": chunked | {"shape": {"0": 6}}})
    with pytest.raises(ValueError, match=r"a, float32 \[6\], has 20 bytes"):
        flax_files.open_tensors([path])


def test_a_dtype_that_is_not_floating_point_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="a/ids is int64; weights are one of"):
        write(tmp_path, {"a/ids": np.arange(3)})
