"""Every checkpoint of a run gets its folder, once, also while new ones come."""

import json
import shutil
import threading
import time

import pytest

from convert import __main__, from_hf, to_hf
from convert.model_files import any_format
from limba.addons.publish.all_checkpoints import convert_all

OPTIONS = {"formats": ("safetensors",), "verify": False}


@pytest.fixture
def run(new_run, tmp_path):
    run = new_run(tmp_path / "run", num_encoder_layers=1, num_decoder_layers=1)
    shutil.copytree(run / "checkpoint_10", run / "checkpoint_20")
    return run


def _folders(out):
    return sorted(path.name for path in out.iterdir())


def test_each_into_its_own_folder_and_none_twice(run, tmp_path, capsys):
    out = tmp_path / "out"
    assert __main__.main(["all", str(run), str(out), "--format", "safetensors", "--no-check"]) == 0
    assert _folders(out) == ["checkpoint_10", "checkpoint_20"]
    assert "2 checkpoints are in" in capsys.readouterr().out
    written = [(out / name / "model.safetensors").stat().st_mtime_ns for name in _folders(out)]
    assert __main__.main(["all", str(run), str(out), "--format", "safetensors", "--no-check"]) == 0
    assert capsys.readouterr().out.count("already") == 2
    assert written == [(out / name / "model.safetensors").stat().st_mtime_ns for name in _folders(out)]


def test_an_output_folder_of_limba_run(run, tmp_path, capsys):
    """Its checkpoints are converted; as a model of Hugging Face, which it is too, it is the exported one."""
    export = tmp_path / "first"
    to_hf.to_hf(run / "checkpoint_10", export, **OPTIONS)
    folder = run.parent  # with `run/` in it
    shutil.copytree(export, folder, dirs_exist_ok=True)
    out = tmp_path / "out"
    assert __main__.main(["to-hf", str(folder), str(out), "--format", "safetensors", "--no-check"]) == 0
    assert "checkpoint_20 is exported to" in capsys.readouterr().out
    assert __main__.main(["all", str(folder), str(tmp_path / "every"), "--no-check"]) == 0
    assert _folders(tmp_path / "every") == ["checkpoint_10", "checkpoint_20"]
    assert any_format.open_model(folder).folder is not None
    assert from_hf.find(str(folder), with_runs=True) == folder
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match="is a run of Limba's; export it with"):
        from_hf.find(str(folder))
    assert any_format.open_model(folder).path.name == "checkpoint_20"


@pytest.mark.parametrize("keep", [False, True])
def test_one_that_fails(run, tmp_path, capsys, keep):
    (run / "checkpoint_10/run/run.json").write_text("{")
    arguments = ["all", str(run), str(tmp_path / "out"), "--no-check", *(["--keep-converting"] if keep else [])]
    assert __main__.main(arguments) == 1
    error = capsys.readouterr().err
    if keep:
        assert _folders(tmp_path / "out") == ["checkpoint_20"]
        assert "error: 1 could not be converted: checkpoint_10." in error
    else:
        assert not (tmp_path / "out").exists()
    assert "run.json is damaged or missing" in error


def test_watching_follows_the_run_to_its_last_step(run, tmp_path):
    hidden = tmp_path / "hidden"
    (run / "checkpoint_20").rename(hidden)
    # The last checkpoint says that the run ends there.
    run_json = hidden / "run/run.json"
    content = json.dumps(json.loads(run_json.read_text()) | {"total_steps": 20}).encode()
    from limba.checkpoint_files.small_files import load_files, write_files

    write_files(hidden / "run", load_files(hidden, "run") | {"run.json": content})

    def train():
        time.sleep(1)
        hidden.rename(run / "checkpoint_20")

    thread = threading.Thread(target=train)
    thread.start()
    steps = convert_all(str(run), tmp_path / "out", options=OPTIONS, watch_seconds=60, poll_seconds=0.05)
    thread.join()
    assert steps == [10, 20]


def test_watching_ends_when_nothing_comes(run, tmp_path):
    started = time.monotonic()
    assert convert_all(str(run), tmp_path / "out", options=OPTIONS, watch_seconds=0.3, poll_seconds=0.05) == [10, 20]
    assert time.monotonic() - started < 30


def test_no_run(tmp_path, capsys):
    assert __main__.main(["all", str(tmp_path / "nowhere"), str(tmp_path / "out")]) == 1
    assert "No checkpoint at" in capsys.readouterr().err


def test_a_size_that_is_none(run, tmp_path, capsys):
    assert __main__.main(["all", str(run), str(tmp_path / "out"), "--shard_gb", "0"]) == 1
    assert "--shard_gb 0.0: the size of a file in GB is above 0" in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["nan", "-1", "0"])
def test_a_wait_that_is_none(run, tmp_path, capsys, minutes):
    assert __main__.main(["all", str(run), str(tmp_path / "out"), "--watch", minutes]) == 1
    assert "the minutes to wait are above 0 and finite" in capsys.readouterr().err
