import json

import numpy as np
import pytest

from convert.model_files.hf import hub_models
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
    settings = hub_models.wanted([*there, "config.json"], with_weights=False)
    assert settings == [name for name in (*there, "config.json") if name.endswith(".json")]
    assert hub_models.wanted([*there, "config.json", "README.md"]) == (
        [name for name in chosen if name.endswith(".json")]
        + ["config.json"]
        + [name for name in chosen if not name.endswith(".json")]
    )


def test_a_model_that_is_not_there(loopback):
    with pytest.raises(
        FileNotFoundError,
        match=rf"^There is no repository org/model on {loopback.url}, or it is private and there is no token\. Check",
    ):
        hub_models.download(MODEL)
    with pytest.raises(ValueError, match=r"^'a/b/c' is not a name on the hub: give NAME or ORG/NAME"):
        hub_models.download("a/b/c")


def test_a_private_model_needs_a_token(loopback, folder, monkeypatch):
    loopback.add(MODEL, folder, private=True)
    with pytest.raises(FileNotFoundError, match=r"there is no token\. .* set HF_TOKEN, or run `hf auth login`\.$"):
        hub_models.download(MODEL)
    monkeypatch.setenv("HF_TOKEN", "of somebody else")
    with pytest.raises(FileNotFoundError, match="it is private and the token may not read it"):
        hub_models.download(MODEL)
    monkeypatch.setenv("HF_TOKEN", "hf_loopback")
    assert (hub_models.download(MODEL) / "model.safetensors").is_file()


def test_a_gated_model_says_where_to_agree(loopback, folder):
    loopback.add(MODEL, folder, gated=True)
    with pytest.raises(PermissionError, match=rf"^org/model is only for .*Agree on {loopback.url}/org/model"):
        hub_models.download(MODEL)


# The cause, then the remedy. None of it is the library's own text.
REFUSALS = {
    401: "wants a token. Make one at URL/settings/tokens, and set HF_TOKEN, or run `hf auth login`.",
    403: "The token has no read access to org/model. Give one that may read there: set HF_TOKEN",
    404: "does not know a file or revision of org/model. Check the name.",
    418: "refuses the request for org/model (status 418): You may not do that.",
    429: "has had too many requests of this user or address. Wait some minutes.",
}


@pytest.mark.parametrize("status", REFUSALS)
def test_what_cannot_get_better_is_asked_once(loopback, folder, status):
    loopback.add(MODEL, folder)
    loopback.refuses["GET /api/models"] = status
    with pytest.raises(OSError) as raised:
        hub_models.download(MODEL)
    message = str(raised.value)
    assert REFUSALS[status].replace("URL", loopback.url) in message
    assert "Client Error" not in message and "Request ID" not in message and "\n" not in message
    assert loopback.requests == ["GET /api/models/org/model"]


def test_an_error_of_the_hub_is_said(loopback, folder):
    loopback.add(MODEL, folder)
    loopback.refuses["GET /api/models"] = 500
    with pytest.raises(OSError, match=rf"^{loopback.url} has an error of its own \(status 500\)\. Give the command"):
        hub_models.download(MODEL)


def test_a_file_that_is_refused_after_the_list(loopback, folder):
    loopback.add(MODEL, folder)
    loopback.refuses["HEAD /org/model/resolve"] = 403
    with pytest.raises(PermissionError, match=r"^The token has no read access to org/model\."):
        hub_models.download(MODEL)
    asked = [request for request in loopback.requests if request.startswith("HEAD")]
    assert asked and len(asked) == len(set(asked))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("SSLError", "The certificate of https://huggingface.co is not trusted"),
        ("ProxyError", "The proxy to https://huggingface.co does not answer"),
        ("ReadTimeout", "https://huggingface.co does not answer in time"),
        ("ConnectionError", "There is no connection to https://huggingface.co"),
    ],
)
def test_why_no_answer_came(kind, message):
    import requests

    hf = hub_models.client()
    raised = RuntimeError("Error while uploading 'x' to the Hub.")
    raised.__cause__ = getattr(requests.exceptions, kind)("HTTPSConnectionPool(host='huggingface.co', port=443): …")
    error = hub_models.explain(hf, MODEL, raised)
    assert isinstance(error, ConnectionError)
    assert str(error) == f"{message}, to ask for {MODEL}. Check the network, HF_ENDPOINT and proxies."
    # An error of the library that has nothing to do with the network is not called one.
    assert "did not finish" in str(hub_models.explain(hf, MODEL, RuntimeError("a bug")))


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
    reason = "HF_HUB_OFFLINE is set" if why == "offline" else f"There is no connection to {loopback.url}"
    assert capsys.readouterr().err == f"{reason}: {MODEL} is taken from the cache, {online}.\n"
    match = rf"^{reason}, and org/other is not in the cache, .*home/hub\. Connect, or give a folder of this machine\.$"
    with pytest.raises(ConnectionError, match=match):
        hub_models.download("org/other")


@pytest.mark.parametrize("etag", ["../../../../../FILE", "OUTSIDE/FILE", "/etc/hostname", "", ".", "x" * 3000])
def test_no_name_that_the_hub_gives_a_file_s_content_leads_out_of_the_cache(loopback, folder, tmp_path, etag):
    """The library calls the content in its cache as the header says."""
    (outside := tmp_path / "outside").mkdir()
    loopback.add(MODEL, folder)
    loopback.etag = lambda path: etag.replace("OUTSIDE", str(outside)).replace("FILE", f"{path}.evil")
    downloaded = hub_models.download(MODEL)
    cache = tmp_path / "home/hub"
    assert {path.resolve().parent for path in downloaded.iterdir()} == {cache / "models--org--model/blobs"}
    assert not [path for path in tmp_path.rglob("*evil*") if cache not in path.parents] and not any(outside.iterdir())


# What the hub says of a model, and what of it is no answer of a hub.
ODD_ANSWERS = {
    "a page": (b"<html>log in</html>", "JSONDecodeError"),
    "a list": (b"[1, 2]", "TypeError"),
    "nothing": (b"{}", "KeyError"),
    "brackets": (b"[" * 200_000, "RecursionError"),
    "a number": (b'{"id":' + b"9" * 5000 + b"}", "ValueError: Exceeds the limit"),
    "a date": (b'{"id": "x", "lastModified": "now"}', "ValueError: Cannot parse"),
    "no names": (b'{"id": "x", "siblings": "abc"}', "TypeError"),
}


@pytest.mark.parametrize("what", ODD_ANSWERS)
def test_an_answer_that_no_hub_gives_is_one_message(loopback, folder, what):
    answer, said = ODD_ANSWERS[what]
    loopback.add(MODEL, folder)
    loopback.says["GET /api/models/org/model"] = answer
    with pytest.raises(
        ValueError, match=rf"^{loopback.url} answers about org/model as no hub does \({said}.*HF_ENDPOINT\.$"
    ):
        hub_models.download(MODEL)


def test_the_hub_s_list_names_no_commit_that_is_believed(loopback, folder, tmp_path):
    """The library would take the folder of that name, and write what it calls a commit beside it."""
    loopback.add(MODEL, folder)
    files = json.dumps(
        [{"rfilename": file} for file in (*SMALL_FILES, "../x.json", "*.json", "a\0.json", "é" * 300 + ".json")]
    )
    loopback.says["GET /api/models/org/model"] = (
        f'{{"id": "x", "sha": "../../../../../x", "siblings": {files}}}'.encode()
    )
    downloaded = hub_models.download(MODEL, with_weights=False)
    assert names(downloaded) == SMALL_FILES and downloaded.name == loopback.repos[MODEL].sha()
    assert not (tmp_path / "x").exists()


def test_a_file_of_another_size_than_the_hub_says(loopback, folder):
    loopback.add(MODEL, folder)
    loopback.size = lambda path: 1
    with pytest.raises(OSError, match=r"^huggingface_hub did not finish with org/model\. Give the command again"):
        hub_models.download(MODEL)


def test_a_model_that_changes_while_it_is_downloaded(loopback, folder):
    loopback.add(MODEL, folder).commits.append({})
    repo = loopback.repos[MODEL]
    repo.commits[1] = dict(repo.commits[0])
    loopback.commit = lambda path: repo.sha(len(path) % 2)
    with pytest.raises(
        ConnectionError, match=r"^org/model has changed while it was downloaded\. Give the command again\.$"
    ):
        hub_models.download(MODEL)
