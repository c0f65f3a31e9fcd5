import collections
import io
import os
import pickle
import struct
import tracemalloc
import zipfile

import ml_dtypes
import numpy as np
import pytest

from limba.addons.torch_files import torch_files

torch = pytest.importorskip("torch")

FORMATS = {"zip": True, "legacy": False}


@pytest.fixture(params=list(FORMATS))
def save(request, tmp_path):
    """Writes what `torch.save` makes of an object, in the format of today and in that before 1.6; returns the file."""

    def write(content, name="pytorch_model.bin"):
        path = tmp_path / name
        torch.save(content, path, _use_new_zipfile_serialization=FORMATS[request.param])
        return path

    return write


def as_numpy(tensor):
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def assert_same(tensors, expected):
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        array = as_numpy(tensor)
        assert tensors[name].dtype == array.dtype and tensors[name].shape == array.shape, name
        assert np.asarray(tensors[name]).tobytes() == array.tobytes(), name
        part = tuple(slice(size // 3, size) for size in array.shape)
        assert tensors[name].read(part).tobytes() == array[part].tobytes(), name


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def test_dtypes_and_parameters(save):
    content = {
        "a.weight": torch.nn.Parameter(random(12, 8)),
        "b": random(5, dtype=torch.bfloat16),
        "c": random(3, 7, dtype=torch.float16),
        "d": random(2, 2, 2, dtype=torch.float64),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
    }
    assert_same(torch_files.open_tensors([save(content)]), content)


def test_a_module_s_state_dict(save):
    module = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.LayerNorm(3))
    state = module.state_dict()
    assert type(state) is collections.OrderedDict and state._metadata  # which pickle as a state of the dict
    assert_same(torch_files.open_tensors([save(state)]), state)


def test_views(save):
    base = random(6, 8)
    content = {
        "whole": base,
        "tied": base,
        "transposed": base.T,
        "rows": base[2:4],
        "columns": base[:, 3:5],
        "every other": base[::2, ::3],
        "permuted": random(2, 3, 4).permute(2, 0, 1),
        "with dims of one": random(1, 5, 1).transpose(0, 2),
        "repeated": random(4, 1).expand(4, 3),
        "diagonal": base.diagonal(),
        "transposed part": base.T[1:3],
    }
    assert_same(torch_files.open_tensors([save(content)]), content)


def test_reading_a_part_takes_memory_for_that_part(save):
    path = save({"w": torch.zeros(2048, 1024)})
    w = torch_files.open_tensors([path])["w"]
    tracemalloc.start()
    w.read((slice(0, 16), slice(None)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


def test_a_storage_that_is_part_of_another(tmp_path):
    """As versions before 0.4 wrote it: the storage of a tensor begins at element 2 of the one in the file."""

    class Part:
        pass

    class Rebuilt:
        def __reduce__(self):
            return torch._utils._rebuild_tensor_v2, (Part(), 1, (2,), (1,), False, collections.OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            part = ("storage", torch.FloatStorage, "7", "cpu", 6, ("8", 2, 4))
            return part if isinstance(value, Part) else None

    path = tmp_path / "pytorch_model.bin"
    with path.open("wb") as file:
        for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {"w": Rebuilt()}, ["7"]):
            Pickler(file, protocol=2).dump(value)
        file.write(struct.pack("<q6f", 6, *range(6)))
    (w,) = torch_files.open_tensors([path]).values()
    np.testing.assert_array_equal(np.asarray(w), np.array([3, 4], np.float32), strict=True)


@pytest.mark.parametrize("key", ["state_dict", "model", "module"])
def test_the_model_among_other_things(save, key):
    content = {"epoch": 3, "optimizer": {"lr": 0.1, "moments": [torch.ones(2)]}, key: {"w": random(3)}}
    assert_same(torch_files.open_tensors([save(content)]), content[key])


def test_several_files(save):
    first, second = {"a": random(3), "b": random(4)}, {"c": random(5)}
    files = [save(first, "one.bin"), save(second, "two.bin")]
    assert_same(torch_files.open_tensors(files), first | second)
    with pytest.raises(ValueError, match=r"two\.bin has a tensor that another of the model's files has too: c"):
        torch_files.open_tensors([*files, files[1]])


class Attack:
    def __reduce__(self):
        return os.system, ("touch attacked",)


@pytest.mark.parametrize(
    ("content", "asked"),
    [
        ({"w": Attack()}, rf"{os.system.__module__}\.system"),
        ({"w": torch.ones(2), "type": np.float32}, r"numpy\.float32"),
        ({"w": torch.ones(2), "dtype": torch.float32}, r"torch\.float32"),
        (torch.nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear"),
    ],
    ids=["attack", "class", "dtype", "module"],
)
def test_nothing_else_than_tensors_is_let_in(save, tmp_path, monkeypatch, content, asked):
    path = save(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"pytorch_model\.bin is not a file of plain tensors: it asks for {asked},"):
        torch_files.open_tensors([path])
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(2)], "holds a list and no table of tensors"),
        ({"w": torch.ones(2), "epoch": 3}, "has 'epoch' of type int among its tensors"),
        ({"epoch": 3}, "has 'epoch' of type int among"),
        ({7: torch.ones(2)}, "has 7 of type Tensor among"),
        ({"ids": torch.arange(3)}, "ids is of a LongStorage; weights are one of DoubleStorage, FloatStorage"),
    ],
)
def test_what_is_no_model_is_named(save, content, message):
    with pytest.raises(ValueError, match=rf"pytorch_model\.bin:? {message}"):
        torch_files.open_tensors([save(content)])


def test_a_file_that_is_cut_short_is_named(save):
    path = save({"a": random(50), "b": random(50)})
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"pytorch_model\.bin is (cut short|damaged)"):
            torch_files.open_tensors([path])


def test_a_storage_that_is_cut_short_says_by_how_much(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": random(50)}, path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(ValueError, match=f"cut short: {len(whole):,} bytes expected, {len(whole) - 8:,} found"):
        torch_files.open_tensors([path])


def test_damaged_bytes_are_an_error_or_other_numbers(save):
    """Every byte that does not belong to a tensor's numbers, changed: nothing but ValueError comes out."""
    path = save({"a": random(3), "b.c": torch.nn.Parameter(random(2, 2))})
    whole = path.read_bytes()
    for position in range(0, len(whole), 1 if len(whole) < 1000 else 3):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x15]) + whole[position + 1 :])
        try:
            for tensor in torch_files.open_tensors([path]).values():
                np.asarray(tensor)
        except ValueError as error:
            assert "pytorch_model.bin" in str(error)


def rewritten(path, change):
    """The zip archive with other content in some parts, or without those for which `change` gives None."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: change(name, archive.read(name)) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            if content is not None:
                archive.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("byteorder", b"big", "was written on a big-endian machine"),
        ("data/0", None, "the storage of w, 0, is not in it"),
        ("data/0", b"x" * 19, "w, .5. with strides .1. from element 0 on, does not fit into its storage of 19 bytes"),
        ("data.pkl", None, r"a zip archive without one data\.pkl"),
    ],
)
def test_a_damaged_archive_is_named(tmp_path, part, content, message):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": random(5)}, path)
    rewritten(path, lambda name, old: content if name.partition("/")[2] == part else old)
    with pytest.raises(ValueError, match=rf"pytorch_model\.bin.*{message}"):
        torch_files.open_tensors([path])


def test_an_archive_without_byteorder_is_little_endian(tmp_path):
    path = tmp_path / "pytorch_model.bin"  # PyTorch wrote none before 2.1.
    torch.save({"w": random(5)}, path)
    rewritten(path, lambda name, old: None if name.endswith("/byteorder") else old)
    assert_same(torch_files.open_tensors([path]), {"w": random(5)})


def test_a_compressed_archive_is_refused(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}))
    with pytest.raises(ValueError, match=r"its part archive/data\.pkl is not as stored"):
        torch_files.open_tensors([path])


def test_other_files_are_no_weights(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    for content in (b"<html>", pickle.dumps({"w": 1}), b""):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a file of PyTorch weights"):
            torch_files.open_tensors([path])


def unpickled(data):
    return torch_files._unpickle("file", io.BytesIO(data), len(data))[0]


@pytest.mark.parametrize(
    "value",
    [
        # Attributes set on what is allowed: on the class, a function, and a tensor's description.
        b"\x80\x02ccollections\nOrderedDict\nN}X\x05\x00\x00\x00itemsK\x01s\x86b.",
        b"\x80\x02ctorch\nFloatStorage\n}X\x01\x00\x00\x00xK\x01sb.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(K\x00K\x00))tR.",
        b"\x80\x02X\x01\x00\x00\x00xQ.",
    ],
)
def test_a_pickle_cannot_reach_into_what_is_let_in(value):
    with pytest.raises(ValueError, match="file is damaged"):
        unpickled(value)
