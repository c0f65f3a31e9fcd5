import json
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from convert.tensors import safetensors_files, tensor_parts
from limba.checkpoint_files.saved_tensors import from_array

RNG = np.random.default_rng(0)
ARRAYS = {
    "shared.weight": RNG.normal(size=(12, 8)).astype(np.float32),
    "encoder.norm": RNG.normal(size=8).astype(ml_dtypes.bfloat16),
    "decoder.half": RNG.normal(size=(3, 5)).astype(np.float16),
    "double": RNG.normal(size=(2, 2, 2)),
    "scalar": np.array(3.5, np.float32),
    "empty": np.zeros((0, 4), np.float32),
}


def write(folder, arrays, shard_bytes=10**9):
    folder.mkdir(exist_ok=True)
    tensors = {name: from_array(array) for name, array in arrays.items()}
    safetensors_files.write(folder, tensors, lambda _: None, shard_bytes)
    return sorted(folder.glob("*.safetensors"))


def assert_same(tensors, arrays):
    assert tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        assert tensors[name].dtype == array.dtype and tensors[name].shape == array.shape, name
        assert np.asarray(tensors[name]).tobytes() == array.tobytes(), name


def test_the_library_reads_what_is_written(tmp_path):
    (file,) = write(tmp_path, ARRAYS)
    assert file.name == "model.safetensors"
    with safetensors.safe_open(file, framework="numpy") as opened:
        assert opened.metadata() == {"format": "pt"}
        assert set(opened.keys()) == ARRAYS.keys()
        for name in ARRAYS.keys() - {"encoder.norm"}:  # NumPy alone has no bfloat16.
            np.testing.assert_array_equal(opened.get_tensor(name), ARRAYS[name], strict=True)
    torch = pytest.importorskip("torch")
    with safetensors.safe_open(file, framework="pt") as opened:
        norm = opened.get_tensor("encoder.norm")
        assert norm.dtype == torch.bfloat16
        np.testing.assert_array_equal(norm.float().numpy(), ARRAYS["encoder.norm"].astype(np.float32))


def test_what_the_library_writes_is_read(tmp_path):
    arrays = {name: array for name, array in ARRAYS.items() if name != "encoder.norm"}
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    assert_same(safetensors_files.open_tensors([tmp_path / "model.safetensors"]), arrays)


def test_shards_come_back(tmp_path):
    files = write(tmp_path, ARRAYS, shard_bytes=100)
    assert [file.name for file in files] == [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]
    assert_same(safetensors_files.open_tensors(files), ARRAYS)
    with pytest.raises(ValueError, match=r"another of the model's files has too: shared\.weight"):
        safetensors_files.open_tensors([*files, *write(tmp_path / "again", {"shared.weight": np.ones(1)})])


def test_a_transposed_tensor_is_written_from_a_file(tmp_path):
    (file,) = write(tmp_path / "a", ARRAYS)
    turned = tensor_parts.transposed(safetensors_files.open_tensors([file])["shared.weight"])
    (tmp_path / "b").mkdir()
    safetensors_files.write(tmp_path / "b", {"w": turned}, lambda _: None, 10**9)
    (w,) = safetensors_files.open_tensors([tmp_path / "b/model.safetensors"]).values()
    np.testing.assert_array_equal(np.asarray(w), ARRAYS["shared.weight"].T)


def test_transformers_loads_shards(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, tie_word_embeddings=False))
    arrays = {
        name: tensor.numpy() for name, tensor in model.state_dict().items() if not name.endswith("embed_tokens.weight")
    }
    model.config.save_pretrained(tmp_path)
    assert len(write(tmp_path, arrays, shard_bytes=10_000)) > 2
    loaded = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).state_dict()
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(loaded[name].numpy(), tensor.numpy(), err_msg=name)


def test_nan_on_the_way_names_the_tensor_and_leaves_no_file(tmp_path):
    array = np.array([1, np.nan], np.float32)
    with pytest.raises(ValueError, match="lm_head holds NaN"):
        safetensors_files.write(
            tmp_path, {"w": tensor_parts.cast(from_array(array), np.float32, "lm_head")}, lambda _: None, 10**9
        )
    assert not (tmp_path / "model.safetensors").exists()


def test_a_dtype_without_a_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"ids is int64, which is not a dtype of weights"):
        write(tmp_path, {"ids": np.arange(3)})


def test_a_file_that_is_cut_short_says_by_how_much(tmp_path):
    (file,) = write(tmp_path, ARRAYS)
    whole = file.read_bytes()
    for length in (0, 5, 50, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=rf"model\.safetensors is cut short: .* expected, {length:,} found"):
            safetensors_files.open_tensors([file])
    file.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=rf"{len(whole):,} bytes expected, {len(whole) - 1:,} found"):
        safetensors_files.open_tensors([file])
    file.write_bytes(whole + b"x")
    with pytest.raises(ValueError, match=rf"damaged: {len(whole):,} bytes expected, {len(whole) + 1:,} found"):
        safetensors_files.open_tensors([file])


def with_header(path, header, data=b"\0" * 16):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    return [path]


TENSOR = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"not JSON", "its header is not JSON"),
        (b"\xff\xfe", "its header is not UTF-8: byte 0xff at line 1, byte 1"),
        ([1], "its header holds a list of 1; it is one object"),
        ({"__metadata__": 3}, "__metadata__ is 3"),
        ({"__metadata__": {"format": ["flax"]}}, "__metadata__ is a table of 1; it has texts"),
        ({"w": 3}, "w is 3"),
        ({"w": {**TENSOR, "shape": [-4]}}, "w is a table of 3; it has dtype, shape and data_offsets"),
        ({"w": {**TENSOR, "shape": [5]}}, r"w, F32 \[5\], lies at \[0, 16\] and not at \[0, 20\]"),
        ({"w": {**TENSOR, "data_offsets": [4, 20]}}, r"lies at \[4, 20\] and not at \[0, 16\]"),
        ({"w": TENSOR, "v": TENSOR}, r"v, F32 \[4\], lies at \[0, 16\] and not at \[16, 32\]"),
        ({"w": {**TENSOR, "dtype": "I8"}}, "w is I8; weights are one of F64, F32, F16, BF16"),
        ({"w": TENSOR, "__metadata__": {"format": "flax"}}, "holds a model of flax"),
    ],
)
def test_a_damaged_header_is_named(tmp_path, header, message):
    with pytest.raises(ValueError, match=rf"model\.safetensors.*{message}"):
        safetensors_files.open_tensors(with_header(tmp_path / "model.safetensors", header))


def test_another_kind_of_file_is_no_safetensors(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"<!DOCTYPE html><html>404</html>")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        safetensors_files.open_tensors([path])
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        safetensors_files.open_tensors([tmp_path / "none" / "model.safetensors"])
