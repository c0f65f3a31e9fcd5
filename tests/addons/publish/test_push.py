import json
import os
import re
import site
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from convert.__main__ import main
from convert.model_files.hf import hub_models
from convert.tensors import flax_files, safetensors_files, weight_files
from limba.addons.publish.push import push
from limba.checkpoint_files.saved_tensors import from_array
from tests import loopback_hub

REPOSITORY = Path(__file__).parents[3]
# The first file is uploaded in parts, the others at once.
ARRAYS = {"a": np.random.default_rng(0).normal(size=(300, 100)).astype(np.float32), "b": np.zeros(5, np.float32)}


@pytest.fixture
def loopback(monkeypatch, tmp_path):
    hub = loopback_hub.LoopbackHub()
    hub.use(monkeypatch, tmp_path / "home")
    yield hub
    hub.close()


@pytest.fixture
def folder(tmp_path):
    """What an export looks like from here."""
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "config.json").write_text("{}", "utf-8")
    (folder / "spiece.model").write_bytes(b"pieces")
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# A model\n", "utf-8")
    tensors = {name: from_array(array) for name, array in ARRAYS.items()}
    safetensors_files.write(folder, tensors, lambda _: None, 10**9)
    flax_files.write(folder, tensors, lambda _: None, 100_000)
    report = {"checkpoint": "checkpoint_10", "formats": ["safetensors", "flax"], "checked": True}
    names = sorted(["conversion_report.json", *(file.name for file in folder.iterdir())])
    (folder / "conversion_report.json").write_text(json.dumps(report | {"files": names}), "utf-8")
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rewrite_report(folder, **changes):
    """With a value of None the key goes."""
    path = folder / "conversion_report.json"
    report = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in report.items() if value is not None}), "utf-8")


# What editors, shells, Python and `limba run` leave in a folder, and what nobody should publish.
OTHERS = {
    ".env": "HF_TOKEN=hf_secret",
    "README.md~": "an earlier card",
    ".config.json.swp": "",
    "notes.txt": "mine",
    "run/checkpoint_10/run/run.json": "{}",
    "nested/config.json": "{}",
    "model.safetensors.bak": "x",
}


def add_others(folder):
    for name, text in OTHERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


def test_a_folder_arrives_whole_and_private(loopback, folder, capsys):
    assert push(folder, "org/model") == f"{loopback.url}/org/model"
    repo = loopback.repos["org/model"]
    assert repo.private and repo.files == content(folder)
    assert repo.messages[0].startswith("checkpoint_10, converted by Limba")
    assert f"{folder} is at {loopback.url}/org/model (private)." in capsys.readouterr().out
    assert len(ARRAYS["a"].tobytes()) > loopback_hub.PART_BYTES
    assert [asked for asked in loopback.requests if asked.startswith("PUT") and asked.endswith("/2")]


def test_there_and_back(loopback, folder):
    push(folder, "model", public=True)
    assert not loopback.repos["user/model"].private
    downloaded = hub_models.download("user/model")
    np.testing.assert_array_equal(np.asarray(weight_files.open_tensors(downloaded)["a"]), ARRAYS["a"])


def test_the_same_again_uploads_nothing(loopback, folder):
    push(folder, "org/model")
    loopback.requests.clear()
    push(folder, "org/model")
    assert len(loopback.repos["org/model"].commits) == 2
    assert not [asked for asked in loopback.requests if asked.startswith("PUT")]


def test_other_shards_replace_the_former_weights(loopback, folder):
    push(folder, "org/model")
    repo = loopback.repos["org/model"]
    repo.files["pytorch_model.bin"] = b"not from here"
    (folder / "model.safetensors").unlink()
    tensors = {name: from_array(array + 1) for name, array in ARRAYS.items()}
    safetensors_files.write(folder, tensors, lambda _: None, 100_000)
    rewrite_report(folder, files=sorted(content(folder)))
    push(folder, "org/model")
    assert repo.files == content(folder) | {"pytorch_model.bin": b"not from here"}
    assert "model.safetensors" not in repo.files and "model-00001-of-00002.safetensors" in repo.files


@pytest.mark.parametrize(("is_private", "public"), [(True, True), (False, False)])
def test_a_repository_that_others_see_or_not_is_not_taken_for_the_opposite(loopback, folder, is_private, public):
    loopback.repos["org/model"] = loopback_hub.Repo(private=is_private)
    with pytest.raises(ValueError, match=rf"org/model is there and {'private' if is_private else 'public'}"):
        push(folder, "org/model", public=public)
    assert not loopback.repos["org/model"].files


def test_without_a_token(loopback, folder, monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("HF_TOKEN")
    (empty := tmp_path / "empty").mkdir()
    # A wrong folder needs no token to be found.
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        push(tmp_path / "no such folder", "org/model")
    with pytest.raises(FileNotFoundError, match="is not what to-hf wrote"):
        push(empty, "org/model")
    with pytest.raises(ValueError, match=r"no token for http.*: set HF_TOKEN, or run `hf auth login`\.$"):
        push(folder, "org/model")
    assert not loopback.requests
    # The files are shown before the token is asked for.
    size = f"{(folder / 'config.json').stat().st_size} B"
    assert re.search(rf"^ *{size}  config\.json$", capsys.readouterr().out, re.MULTILINE)
    # The file that `hf auth login` writes is enough.
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home/token").write_text("hf_loopback", "utf-8")
    push(folder, "org/model")
    assert loopback.repos["org/model"].files == content(folder)


@pytest.mark.parametrize("check", [True, False])
def test_a_run_is_not_an_export(loopback, tmp_path, check):
    (tmp_path / "run/checkpoint_5/state").mkdir(parents=True)
    for path in (tmp_path / "run", tmp_path / "run/checkpoint_5"):
        with pytest.raises(
            ValueError, match=rf"{path} is a run, not an export: `limba convert to-hf {path} exports/NAME`"
        ):
            push(path, "org/model", check=check)
    assert not loopback.requests


@pytest.mark.parametrize("has_list", [True, False])
def test_only_what_the_converter_wrote_is_uploaded(loopback, folder, capsys, has_list):
    """An older export has no list in its report; then the names tell."""
    if not has_list:
        rewrite_report(folder, files=None)
    before = content(folder)
    add_others(folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n", "utf-8")  # Its text may be edited.
    push(folder, "org/model", public=True)
    assert loopback.repos["org/model"].files == before | {"README.md": b"---\nlicense: mit\n---\n# Mine\n"}
    left_out = ".config.json.swp, .env, README.md~, model.safetensors.bak, nested/, notes.txt, run/"
    assert f"Left out, because to-hf did not write them: {left_out}." in capsys.readouterr().out


def test_the_files_and_their_sizes_are_shown_first(loopback, folder, capsys):
    loopback.refuses["POST /api/repos/create"] = 403
    with pytest.raises(PermissionError):
        push(folder, "org/model", public=True)
    lines = capsys.readouterr().out.splitlines()
    files = content(folder)
    assert lines[0] == f"{len(files)} files of {folder} for {loopback.url}/org/model (public):"
    sizes = {line.split()[-1]: " ".join(line.split()[:-1]) for line in lines[1:]}
    assert sorted(sizes) == sorted(files)
    # 30,005 numbers of four bytes and their header.
    assert sizes["model.safetensors"] == "120.2 kB" and sizes["config.json"] == "2 B"


def test_a_dry_run_uploads_nothing(loopback, folder, capsys):
    loopback.close()  # nobody is asked
    main(["push", str(folder), "org/model", "--dry-run"])
    said = capsys.readouterr().out
    assert "config.json" in said and said.endswith("Nothing is uploaded (--dry-run).\n")
    assert not loopback.repos


@pytest.mark.parametrize("target", ["/etc/hostname", "config.json"])
def test_a_link_is_refused(loopback, folder, target):
    (folder / "spiece.model").unlink()
    (folder / "spiece.model").symlink_to(target)
    with pytest.raises(ValueError, match=rf"spiece\.model is a link to {target}\. Put a copy of the file there"):
        push(folder, "org/model")
    assert not loopback.requests


def test_a_link_that_is_not_of_the_export_is_left_out(loopback, folder):
    expected = content(folder)
    (folder / "latest").symlink_to("/etc")
    push(folder, "org/model")
    assert loopback.repos["org/model"].files == expected


@pytest.mark.parametrize("files", ["config.json", ["../secret"], [".env"], ["id_rsa"], ["run/x"], [5]])
def test_a_list_that_the_converter_did_not_write_is_refused(loopback, folder, files):
    for name in (".env", "id_rsa"):
        (folder / name).write_text("x")
    rewrite_report(folder, files=files)
    with pytest.raises(ValueError, match=r"conversion_report\.json is damaged: "):
        push(folder, "org/model")
    assert not loopback.requests


DAMAGE = {
    "no report": (lambda folder: (folder / "conversion_report.json").unlink(), "has no conversion_report"),
    "half a report": (lambda folder: (folder / "conversion_report.json").write_text("{"), r"report\.json is not JSON"),
    "not checked": (lambda folder: rewrite_report(folder, checked=False), "written without a check of the conversion"),
    "no config": (lambda folder: (folder / "config.json").unlink(), r"has no config\.json"),
    "a part": (lambda folder: (folder / ".model.safetensors.part").touch(), "is not finished"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no weights in the format safetensors"),
    "half the weights": (lambda folder: os.truncate(folder / "model.safetensors", 999), "model.safetensors is cut"),
    "no second shard": (lambda folder: (folder / "flax_model-00002-of-00002.msgpack").unlink(), "lacks flax_model-000"),
    "no tokenizer": (
        lambda folder: (folder / "spiece.model").unlink(),
        r"lacks spiece\.model, which conversion_report",
    ),
    "half a shard": (lambda folder: os.truncate(folder / "flax_model-00001-of-00002.msgpack", 9), "is cut short"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_folder_that_is_not_whole_is_refused(loopback, folder, kind):
    damage, message = DAMAGE[kind]
    damage(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        push(folder, "org/model")
    assert not loopback.requests


def test_no_check_uploads_what_was_not_checked(loopback, folder):
    rewrite_report(folder, checked=False)
    push(folder, "org/unchecked", check=False)
    (folder / "conversion_report.json").unlink()
    push(folder, "org/other", check=False)
    assert loopback.repos["org/other"].files == content(folder)
    os.truncate(folder / "model.safetensors", 999)
    with pytest.raises(ValueError, match="cut short"):
        push(folder, "org/third", check=False)


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        (
            "POST /api/repos/create",
            401,
            "URL does not accept this token. Make one at URL/settings/tokens, and set HF_TO",
        ),
        (
            "POST /api/repos/create",
            403,
            "The token has no write access to org/model. Give one that may write there: set",
        ),
        ("GET /api/models", 404, "URL does not know a file or revision of org/model. Check the name."),
        ("PUT /large", 400, "URL refuses the request for org/model (status 400)"),
        ("PUT /large", 403, "The token has no write access to org/model."),
        ("POST /api/models/org/model/commit", 403, "The token has no write access to org/model."),
    ],
)
def test_a_refusal_is_one_sentence_and_not_tried_again(loopback, folder, request_, status, message):
    loopback.refuses[request_] = status
    with pytest.raises(OSError) as raised:
        push(folder, "org/model")
    assert str(raised.value).startswith(message.replace("URL", loopback.url))
    for word in ("Client Error", "Request ID", "Traceback", "Error while uploading", "\n"):
        assert word not in str(raised.value)
    # Files are uploaded in parallel, each once.
    asked = [asked for asked in loopback.requests if asked.startswith(request_)]
    assert asked and len(asked) == len(set(asked))
    assert "org/model" not in loopback.repos or not loopback.repos["org/model"].files


def test_a_token_of_somebody_else(loopback, folder, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "of somebody else")
    with pytest.raises(PermissionError, match=rf"^{loopback.url} does not accept this token\."):
        push(folder, "org/model")


def test_a_hub_out_of_reach_is_said(loopback, folder):
    loopback.close()
    with pytest.raises(
        ConnectionError, match=rf"^There is no connection to {loopback.url}, to ask for org/model\. Check the network"
    ):
        push(folder, "org/model")


def test_a_name_that_the_hub_cannot_have(loopback, folder):
    with pytest.raises(ValueError, match=r"^'a/b/c' is not a name on the hub: give NAME or ORG/NAME, of letters"):
        push(folder, "a/b/c")


def run(python, code, loopback, tmp_path, *arguments, **environment):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHONPATH"))}
    environment = inherited | loopback.environment(tmp_path / "home") | environment
    command = [python, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=REPOSITORY)


def test_the_command(loopback, folder, tmp_path, capsys):
    code = "import sys; from convert.__main__ import main; sys.exit(main())"
    done = run(sys.executable, code, loopback, tmp_path, "push", folder, "org/model")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{folder} is at {loopback.url}/org/model (private)."
    assert loopback.repos["org/model"].files == content(folder)
    (folder / "config.json").unlink()
    assert main(["push", str(folder), "org/model"]) == 1
    expected = f"error: {folder} has no config.json, without which nobody can load the model.\n"
    assert capsys.readouterr().err == expected


@pytest.mark.slow
def test_a_newer_huggingface_hub(loopback, folder, tmp_path):
    """The environment with transformers 5 has it; what else is needed comes from this one."""
    python = os.environ.get("LIMBA_HF5_PYTHON") or str(REPOSITORY / ".venv-hf5/bin/python")
    if not Path(python).exists():
        pytest.fail(f"There is no {python}. tests/run.sh makes that environment; LIMBA_HF5_PYTHON may name another.")
    begin = f"import sys; sys.path += {site.getsitepackages()!r}; "
    begin += "from limba.addons.publish import push; from convert.model_files.hf import hub_models; "
    code = "push.push(sys.argv[1], 'org/model'); print(hub_models.download('org/model'))"
    done = run(python, begin + code, loopback, tmp_path, folder)
    assert done.returncode == 0, done.stderr
    assert loopback.repos["org/model"].private and loopback.repos["org/model"].files == content(folder)
    downloaded = Path(done.stdout.splitlines()[-1])
    np.testing.assert_array_equal(np.asarray(weight_files.open_tensors(downloaded)["a"]), ARRAYS["a"])

    # Offline, with the cache and without; a hub that is gone; a model that is not there.
    code = """
for name, offline in (("org/model", True), ("org/other", True), ("org/model", False), ("org/other", False)):
    hub_models.client().constants.HF_HUB_OFFLINE = offline
    hub_models.client().close_session()
    try:
        print(hub_models.download(name))
    except OSError as error:
        print(type(error).__name__, error)
"""
    done = run(python, begin + code, loopback, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == lines[2] == str(downloaded)
    assert lines[1].startswith("ConnectionError HF_HUB_OFFLINE is set, and org/other is not in the cache")
    assert lines[3].startswith(
        f"FileNotFoundError There is no repository org/other on {loopback.url}, or it is private"
    )
    assert f"HF_HUB_OFFLINE is set: org/model is taken from the cache, {downloaded}" in done.stderr
    loopback.close()
    code = """
for command in (lambda: hub_models.download("org/other"), lambda: push.push(sys.argv[1], "org/model")):
    try:
        command()
    except ConnectionError as error:
        print(error)
"""
    done = run(python, begin + code, loopback, tmp_path, folder)
    no_copy, *_, no_hub = done.stdout.splitlines()
    assert no_copy.startswith(f"There is no connection to {loopback.url}, and org/other is not in the cache")
    assert no_hub.startswith(f"There is no connection to {loopback.url}, to ask for org/model. Check the network")
