import json
import os

import numpy as np
import pytest

from convert.tensors import flax_files, safetensors_files, weight_files
from limba.addons import table
from limba.checkpoint_files.saved_tensors import from_array

ARRAYS = {"a": np.ones((3, 4), np.float32), "b": np.zeros(5, np.float32), "c": np.full(2, 7, np.float32)}


def write(folder, module=safetensors_files, shard_bytes=10**9):
    folder.mkdir(exist_ok=True)
    module.write(folder, {name: from_array(array) for name, array in ARRAYS.items()}, lambda _: None, shard_bytes)
    return folder


def write_torch(folder, sharded=False):
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(array) for name, array in ARRAYS.items()}
    if not sharded:
        torch.save(tensors, folder / "pytorch_model.bin")
        return
    files = {name: f"pytorch_model-{i:05d}-of-00003.bin" for i, name in enumerate(ARRAYS, 1)}
    for name, file in files.items():
        torch.save({name: tensors[name]}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}), "utf-8")


def assert_whole(tensors):
    assert tensors.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(np.asarray(tensors[name]), array, strict=True)


def test_safetensors_come_before_torch_and_flax(tmp_path):
    write(tmp_path, flax_files)
    assert weight_files.find(tmp_path) == ("flax", [tmp_path / "flax_model.msgpack"])
    assert_whole(weight_files.open_tensors(tmp_path))
    write_torch(tmp_path)
    assert weight_files.find(tmp_path) == ("torch", [tmp_path / "pytorch_model.bin"])
    assert_whole(weight_files.open_tensors(tmp_path))
    write(tmp_path)
    assert weight_files.find(tmp_path) == ("safetensors", [tmp_path / "model.safetensors"])
    assert_whole(weight_files.open_tensors(tmp_path))
    assert weight_files.find(tmp_path, "flax")[0] == "flax"


def test_files_of_torch_are_named_where_no_addon_reads_them(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "ADDONS", {name: row for name, row in table.ADDONS.items() if name != "torch_files"})
    (tmp_path / "pytorch_model.bin").touch()
    for read in (lambda: weight_files.open_tensors(tmp_path), lambda: weight_files.open_file(tmp_path / "step_5.pt")):
        with pytest.raises(ValueError, match=r"(pytorch_model\.bin|step_5\.pt) needs an add-on that .*: torch_files"):
            read()


@pytest.mark.parametrize("module", [safetensors_files, flax_files])
def test_shards(tmp_path, module):
    write(tmp_path, module, shard_bytes=50)
    _, files = weight_files.find(tmp_path)
    assert len(files) == 2
    assert_whole(weight_files.open_tensors(tmp_path))


def test_shards_of_torch(tmp_path):
    write_torch(tmp_path, sharded=True)
    format_, files = weight_files.find(tmp_path)
    assert format_ == "torch" and len(files) == 3
    assert_whole(weight_files.open_tensors(tmp_path))


def test_a_missing_shard_is_named(tmp_path):
    write(tmp_path, shard_bytes=20)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"lacks model-00002-of-00003\.safetensors, which model\.safetensors\.ind"
    ):
        weight_files.find(tmp_path)
    (tmp_path / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks model-00002-of-00003\.safetensors and 1 more files"):
        weight_files.find(tmp_path)


def test_a_tensor_that_only_the_index_has_is_named(tmp_path):
    write(tmp_path, shard_bytes=20)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text("utf-8"))
    index["weight_map"]["d"] = "model-00001-of-00003.safetensors"
    path.write_text(json.dumps(index), "utf-8")
    with pytest.raises(ValueError, match=r"index\.json names tensors that are in none of its files: d"):
        weight_files.open_tensors(tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"weight_map": 3}', '{"weight_map": {}}', '{"weight_map": {"a": "../a.safetensors"}}']
)
def test_a_damaged_index_is_named(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content, "utf-8")
    with pytest.raises(
        ValueError, match=r"model\.safetensors\.index\.json (is damaged|is not JSON|holds an empty list)"
    ):
        weight_files.find(tmp_path)


def test_a_folder_without_weights(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"has no weights, neither model\.safetensors, pytorch_model\.bin, flax"
    ):
        weight_files.find(tmp_path)
    (tmp_path / "tf_model.h5").touch()
    with pytest.raises(FileNotFoundError, match=r"tf_model\.h5: load the model in transformers 4"):
        weight_files.find(tmp_path)
    write(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no weights in the format flax, only in safetensors"):
        weight_files.find(tmp_path, "flax")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.symlink_to("/gone/blob"), r"safetensors is a link to /gone/blob, which does not exist"),
        (lambda path: path.mkdir(), r"safetensors is a folder, not a file"),
        (os.mkfifo, r"safetensors is a FIFO, not a file"),
        (lambda path: path.symlink_to("/dev/zero"), r"safetensors is a device, not a file"),
    ],
    ids=["dangling", "folder", "fifo", "device"],
)
@pytest.mark.parametrize("name", ["model.safetensors", "model-00001-of-00003.safetensors"])
def test_weights_that_are_no_file_say_so(tmp_path, make, words, name):
    write(tmp_path, shard_bytes=10**9 if name == "model.safetensors" else 20)
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        weight_files.open_tensors(tmp_path)


def test_long_names_are_cut(tmp_path):
    write(tmp_path, shard_bytes=20)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for weight_map in ({"x" * 50_000: "model-00001-of-00003.safetensors"}, {"a": f"{'x' * 50_000}.safetensors"}):
        path.write_text(json.dumps(index | {"weight_map": weight_map}))
        with pytest.raises((ValueError, FileNotFoundError), match="x…") as error:
            weight_files.open_tensors(tmp_path)
        assert len(str(error.value)) < 1000


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "model."])
def test_names_of_wrappers_are_passed_over(prefix, tmp_path):
    wrapped = {f"{prefix}{name}": from_array(array) for name, array in ARRAYS.items()}
    safetensors_files.write(tmp_path, wrapped, lambda _: None, 50)
    assert_whole(weight_files.open_tensors(tmp_path))
    assert weight_files.is_wrapped(tmp_path)


def test_a_file_of_lightning_is_without_its_wrapper(tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {f"model.{name}": torch.from_numpy(array) for name, array in ARRAYS.items()}
    torch.save({"state_dict": tensors, "epoch": 1}, tmp_path / "last.pth")
    assert_whole(weight_files.open_file(tmp_path / "last.pth"))


def test_a_prefix_of_some_names_is_part_of_them(tmp_path):
    names = {"model.a": ARRAYS["a"], "model.model.b": ARRAYS["b"], "head.c": ARRAYS["c"]}
    safetensors_files.write(tmp_path, {n: from_array(a) for n, a in names.items()}, lambda _: None, 10**9)
    assert weight_files.open_tensors(tmp_path).keys() == names.keys()
    assert not weight_files.is_wrapped(tmp_path)
