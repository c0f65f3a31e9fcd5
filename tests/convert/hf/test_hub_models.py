import json

import numpy as np
import pytest

from convert.hf import hub_models
from convert.tensors import flax_files, safetensors_files, weight_files
from limba.checkpoint_files.saved_tensors import from_array
from tests.loopback_hub import LoopbackHub

ARRAYS = {"a": np.ones((30, 40), np.float32), "b": np.zeros(5, np.float32)}
MODEL = "org/model"


@pytest.fixture
def loopback(monkeypatch, tmp_path):
    hub = LoopbackHub()
    hub.use(monkeypatch, tmp_path / "home", token=None)
    yield hub
    hub.close()


@pytest.fixture
def folder(tmp_path):
    """A model with weights in three formats and what else repositories hold."""
    folder = tmp_path / "model"
    (folder / "onnx").mkdir(parents=True)
    for file in ("README.md", "pytorch_model.bin", "tf_model.h5", "rust_model.ot", "spiece.model", "onnx/config.json"):
        (folder / file).write_bytes(b"not asked for")
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / file).write_text(json.dumps({"file": file}), "utf-8")
    tensors = {name: from_array(array) for name, array in ARRAYS.items()}
    safetensors_files.write(folder, tensors, lambda _: None, 10**9)
    flax_files.write(folder, tensors, lambda _: None, 10**9)
    return folder


SMALL_FILES = ["config.json", "spiece.model", "tokenizer.json", "tokenizer_config.json"]


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_only_one_format_comes(loopback, folder):
    loopback.add(MODEL, folder)
    downloaded = hub_models.download(MODEL)
    assert names(downloaded) == sorted([*SMALL_FILES, "model.safetensors"])
    assert (downloaded / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    np.testing.assert_array_equal(np.asarray(weight_files.open_tensors(downloaded)["a"]), ARRAYS["a"])
    assert not [asked for asked in loopback.requests if ".bin" in asked or ".h5" in asked]


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        (["model.safetensors", "pytorch_model.bin"], ["model.safetensors"]),
        (["pytorch_model.bin", "flax_model.msgpack", "tf_model.h5"], ["pytorch_model.bin"]),
        (["flax_model.msgpack", "rust_model.ot"], ["flax_model.msgpack"]),
        (["tf_model.h5"], []),
        (
            ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin", "pytorch_model.bin.index.json"],
            ["pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"],
        ),
        # Only an index or the one file make a format: other precisions are not the model's own weights.
        (["model.fp16.safetensors", "flax_model.msgpack", "onnx/model.safetensors"], ["flax_model.msgpack"]),
    ],
)
def test_which_files_are_wanted(there, chosen):
    assert hub_models.wanted([*there, "config.json", "README.md"]) == (
        [name for name in chosen if name.endswith(".json")]
        + ["config.json"]
        + [name for name in chosen if not name.endswith(".json")]
    )


def test_a_model_that_is_not_there(loopback):
    with pytest.raises(
        FileNotFoundError, match=rf"org/model is not on {loopback.url}, or it is private and there is no to"
    ):
        hub_models.download(MODEL)
    with pytest.raises(ValueError, match="Repo id must"):
        hub_models.download("a/b/c")


def test_a_private_model_needs_a_token(loopback, folder, monkeypatch):
    loopback.add(MODEL, folder, private=True)
    with pytest.raises(FileNotFoundError, match=r"there is no token: set HF_TOKEN, or run `hf auth login`\.$"):
        hub_models.download(MODEL)
    monkeypatch.setenv("HF_TOKEN", "of somebody else")
    with pytest.raises(FileNotFoundError, match="it is private and this token may not see it"):
        hub_models.download(MODEL)
    monkeypatch.setenv("HF_TOKEN", "hf_loopback")
    assert (hub_models.download(MODEL) / "model.safetensors").is_file()


def test_a_gated_model_says_where_to_agree(loopback, folder):
    loopback.add(MODEL, folder, gated=True)
    with pytest.raises(PermissionError, match=rf"{loopback.url}/org/model is for those who agreed"):
        hub_models.download(MODEL)


def test_a_hub_that_refuses_is_quoted(loopback, folder):
    loopback.add(MODEL, folder)
    loopback.refuses["GET /api/models"] = 500
    with pytest.raises(OSError, match=rf"{loopback.url} does not do it: 500 Server Error.*You may not do that"):
        hub_models.download(MODEL)


@pytest.mark.parametrize("why", ["offline", "no answer"])
def test_without_a_connection_the_cache_has_to_do(loopback, folder, monkeypatch, capsys, why):
    from huggingface_hub import constants
    from huggingface_hub.utils import reset_sessions

    def disconnect():
        if why == "offline":
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
            reset_sessions()
        else:
            loopback.close()

    loopback.add(MODEL, folder)
    online = hub_models.download(MODEL)
    disconnect()
    capsys.readouterr()
    assert hub_models.download(MODEL) == online
    assert f"cannot be reached: {MODEL} is taken from the cache, {online}" in capsys.readouterr().err
    with pytest.raises(ConnectionError, match=r"cannot be reached, and org/other is not in the cache, .*home/hub"):
        hub_models.download("org/other")
