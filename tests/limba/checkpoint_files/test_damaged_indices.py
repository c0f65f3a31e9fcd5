"""Indices of checkpoints that are damaged or hostile: one message with the file, whatever they announce."""

import json
import os

import msgpack
import numpy as np
import pytest
import tensorstore as ts
from flax import serialization

from limba.checkpoint_files import classic_format, run_folder, saved_tensors, small_files

SPEC = {"driver": "zarr", "dtype": "float32", "kvstore": {"driver": "file", "path": "target.w/"}}


def read_classic(folder, content):
    (folder / "checkpoint").write_bytes(content)
    return classic_format.read_index(folder)


def index(target, **changes):
    return serialization.msgpack_serialize({"version": 3, "optimizer": {"target": target}} | changes)


def test_a_classic_index(tmp_path):
    leaves = {"a": np.arange(6.0).reshape(2, 3), "step": np.int32(7), "w": SPEC, "none": None, "empty": {}}
    found = read_classic(tmp_path, index(leaves))
    assert found.keys() == {"target/a", "target/step", "target/w"}
    np.testing.assert_array_equal(found["target/a"], leaves["a"], strict=True)
    np.testing.assert_array_equal(found["target/step"], np.asarray(np.int32(7)), strict=True)
    assert found["target/w"]["kvstore"]["path"] == f"{tmp_path}/target.w/"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        # The library makes room for fifty million values, in each of these lists.
        (b"\x82\xa7version\x03\xa9optimizer" + b"\xdd\x02\xfa\xf0\x80" * 900, "optimizer has a list of 50,000,000"),
        (index({"w": SPEC | {"kvstore": {"path": "../../w"}}}), "target/w is in no zarr folder of the checkpoint"),
        (index({"w": SPEC | {"kvstore": 3}}), "target/w is in no zarr folder"),
        (index({"w": SPEC | {"driver": "json"}}), "target/w is in no zarr folder"),
        (index({"w": "text"}), "target/w is 'text' and no array"),
        (index({"w": np.ones(3)}).replace(b"float64", b"objects"), "target/w is damaged: it is of the dtype 'objects'"),
        (index({"w": np.ones(3)}).replace(b"float64", b"float32"), "target/w is damaged: float32 .3. has 24 bytes"),
        (index({}, version="3"), "is a T5X checkpoint of version '3'"),
        (index({}, optimizer=3), "no 'optimizer'"),
        (index({})[:-3], "is cut short"),
        (msgpack.packb([1]), "it holds a list of 1 and no map of arrays"),
    ],
)  # fmt: skip
def test_a_damaged_classic_index_is_named(tmp_path, content, words):
    with pytest.raises(ValueError, match=words) as error:
        read_classic(tmp_path, content)
    assert str(tmp_path) in str(error.value) or words == "is a T5X checkpoint of version '3'"


KEY = "('target', 'w')"
ENTRY = {"key_metadata": [], "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False}}


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ("[" * 100_000, "line 1 has more than 200 brackets"),
        ('{"tree_metadata": {}, "tree_metadata": {}}', "has the key 'tree_metadata' twice"),
        ({"tree_metadata": []}, "it lists no tensors"),
        ({"tree_metadata": {KEY: 3}, "use_ocdbt": False}, "it does not say what .'target', 'w'. is"),
        ({"tree_metadata": {KEY: {"value_metadata": {"value_type": [1]}}}, "use_ocdbt": False}, "it does not say what"),
        *[
            ({"tree_metadata": {key: ENTRY}, "use_ocdbt": False}, "is the name of no tensor")
            for key in ("('target', '../w')", "()", "'target'", "(1, 2)", "(" * 500, "(" * 2000, "9" * 900, "(")
        ],
    ],
)
def test_a_damaged_orbax_index_is_named(tmp_path, metadata, words):
    (tmp_path / "state").mkdir()
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    (tmp_path / "state" / "_METADATA").write_text(text)
    with pytest.raises(ValueError, match=rf"_METADATA is damaged: .*{words}"):
        saved_tensors.open_tensors(tmp_path)


@pytest.mark.parametrize("place", ["state/manifest.ocdbt", "state/d/0", "target.w/.zarray"])
def test_files_that_tensorstore_would_wait_for_or_hold_are_named(tmp_path, place):
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    (tmp_path / place.partition("/")[0] / "again").symlink_to(tmp_path)  # A circle.
    if not place.startswith("state"):
        (tmp_path / "checkpoint").write_bytes(index({"w": SPEC}))
    else:
        (tmp_path / "state/_METADATA").write_text(json.dumps({"tree_metadata": {KEY: ENTRY}}))
    os.mkfifo(file)
    with pytest.raises(ValueError, match=f"{place} is a FIFO, not a file"):
        saved_tensors.open_tensors(tmp_path)
    file.unlink()
    with file.open("wb") as sparse:
        sparse.truncate(2 * 10**9)
    if file.name != "0":  # Of a tensor's own file only what belongs to the tensor is read.
        with pytest.raises(ValueError, match=f"{place} is damaged: it has 2,000,000,000 bytes"):
            saved_tensors.open_tensors(tmp_path)


def state(tmp_path, metadata):
    """A checkpoint of one tensor, with another .zarray: its chunks are 12 numbers, packed by OCDBT."""
    base = {"driver": "file", "path": f"{tmp_path}/state/"}
    store = ts.KvStore.open({"driver": "ocdbt", "base": base}).result()
    spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": "target.w/"}}
    ts.open(spec, create=True, dtype=ts.float32, shape=[3, 4]).result().write(np.ones((3, 4), np.float32)).result()
    changed = metadata(json.loads(store.read("target.w/.zarray").result().value))
    store.write("target.w/.zarray", changed if isinstance(changed, bytes) else json.dumps(changed)).result()
    (tmp_path / "state/_METADATA").write_text(json.dumps({"tree_metadata": {KEY: ENTRY}}))
    return tmp_path


def test_metadata_of_a_tensor_do_not_end_the_process(tmp_path):
    """TensorStore's parser of JSON calls itself for each bracket: it was a segmentation fault."""
    with pytest.raises(ValueError, match="metadata of target/w: line 1 has more than 200 brackets"):
        saved_tensors.open_tensors(state(tmp_path, lambda _: b"[" * 100_000))


def test_a_file_of_tensors_that_is_too_short_is_named(tmp_path):
    """TensorStore says which bytes are missing, and where it reads several ranges at once, not of which file."""
    spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": f"file://{tmp_path}/state/", "path": "target.w/"}}
    ts.open(spec, dtype="float32", shape=(3000,), create=True).result()[...] = np.arange(3000, dtype=np.float32)
    metadata = {"tree_metadata": {KEY: ENTRY}, "use_ocdbt": True}
    (tmp_path / "state" / "_METADATA").write_text(json.dumps(metadata))
    for file in (tmp_path / "state" / "d").iterdir():
        file.write_bytes(file.read_bytes()[:3])
    with pytest.raises(ValueError, match="OUT_OF_RANGE") as error:
        saved_tensors.open_tensors(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}/state")


def test_a_chunk_is_no_larger_than_its_tensor_or_64_mib(tmp_path):
    (tensor,) = saved_tensors.open_tensors(state(tmp_path / "own", dict)).values()
    np.testing.assert_array_equal(np.asarray(tensor), np.ones((3, 4)))
    assert saved_tensors.open_tensors(state(tmp_path / "64", lambda found: found | {"chunks": [4096, 4096]}))
    with pytest.raises(ValueError, match=r"target/w is damaged: .* \[3, 4\], and one chunk of it \[4096, 4097\]"):
        saved_tensors.open_tensors(state(tmp_path / "65", lambda found: found | {"chunks": [4096, 4097]}))


VOCABULARY = {"class": "X", "extra_ids": 0, "vocab_size": 9}
RECORDS = [
    {"network": None},
    {"vocabulary": 3},
    *({"vocabulary": VOCABULARY | {"extra_ids": value}} for value in (None, "1", True, -1, 10**9)),
    *({"vocabulary": VOCABULARY | {key: [1]}} for key in ("class", "vocab_size", "tokenizer_file")),
    *({"feature_lengths": value} for value in (3, {"inputs": "x"}, {"inputs": -1}, {"inputs": 10**12})),
    {"task": ["t"]},
    {"head": "x"},
    {"labels": "ab"},
    {"batch_size": 1.5},
    {"has_blanks": 0},
    {"rows_per_epoch": 10**400},
    *({"seeds": {"random": value}} for value in ("x", None, 2**63, [1])),
    *({"lora": value} for value in (3, {}, {"alpha": "1"}, {"alpha": 10**400})),
]


@pytest.mark.parametrize("record", [b"[" * 100_000, b"[]", b"\xff", None, *RECORDS])
def test_a_damaged_run_record_is_named(tmp_path, record):
    (tmp_path / "state").mkdir()
    record = json.dumps(record).encode() if isinstance(record, dict) else record
    small_files.write_files(tmp_path / "run", {} if record is None else {"run.json": record})
    (tmp_path / "run" / "run.json").touch()
    with pytest.raises(ValueError, match=r"run\.json|is damaged: its list of files lacks run\.json"):
        run_folder.load_run_info(tmp_path)
