"""`limba serve` as it is typed."""

import argparse
import json
import os
import signal
import subprocess
import sys
import urllib.request

import pytest

from limba.addons.serve import command
from limba.inference import blanks
from tests import house
from tests.convert.conftest import new_run, spiece_model  # noqa: F401, fixtures


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--max_batch", "0"], "--max_batch is 0; it is a whole number of at least 1."),
        (["--max_queue", "4"], "--max_queue is 4, less than --max_batch 16; give more."),
        (["--max_wait_ms", "-1"], "--max_wait_ms is -1; it lies between 0 and 60,000."),
        (["--timeout_s", "0"], "--timeout_s is 0; it is above 0"),
        *((["--token", x], "--token is empty, or has characters other than") for x in ("", "é", "s3cret ")),
    ],
)
def test_values_that_cannot_be(flags, words):
    with pytest.raises(ValueError, match=words):
        command.main(["/absent", *flags])


def test_a_token_of_the_environment_that_is_empty(monkeypatch):
    monkeypatch.setenv("LIMBA_SERVE_TOKEN", "")
    with pytest.raises(ValueError, match="LIMBA_SERVE_TOKEN is empty"):
        command.main(["/absent"])


def test_folders_of_other_kinds_get_their_remedy(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="a Hugging Face folder, not a run: make a run of it with"):
        command.main([str(tmp_path)])


def test_without_a_run(capsys):
    with pytest.raises(SystemExit):
        command.main([])
    assert "give RUN, a run's directory or one checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "box.lan", "10.0.0.7"])
def test_others_do_not_reach_a_server_without_a_token(host):
    with pytest.raises(ValueError, match=f"--host {host} without a token: whoever .* Set LIMBA_SERVE_TOKEN"):
        command.main(["/absent", "--host", host])
    with pytest.raises(FileNotFoundError):
        command.main(["/absent", "--host", host, "--token", "s3cret"])


def test_names_by_which_it_may_be_asked():
    named = argparse.Namespace(host="127.0.0.2", allowed_hosts="box.lan, other.lan")
    assert command._hosts(named) == ["127.0.0.2", "box.lan", "other.lan"]


def test_the_name_of_a_run():
    runs = ("runs/mine", "runs/mine/model", "runs/mine/model/checkpoint_3", "runs/mine/checkpoint_4")
    assert {command._name_of(run) for run in runs} == {"mine"} and command._name_of("/model") == "model"


@pytest.mark.slow
def test_answers_of_a_run_are_those_of_infer(tmp_path, new_run, forks):  # noqa: F811
    from convert.from_hf import from_hf
    from convert.to_hf import to_hf

    saved, run = new_run(tmp_path / "saved", num_encoder_layers=1, num_decoder_layers=1), tmp_path / "mine"
    to_hf(saved, tmp_path / "export", formats=["safetensors"], verify=False)
    from_hf(tmp_path / "export", run, verify=False)  # with the run's gin
    flags = ["--max_decode_length", "8", "--greedy", "--input", "the <extra_id_0> of", "--output_file", "out.jsonl"]
    limba = [sys.executable, "-m", "limba.cli"]
    given = {"env": {**os.environ, "PYTHONPATH": str(house.ROOT)}, "cwd": tmp_path}
    assert forks.run(["limba", "infer", str(run), *flags], given["env"], tmp_path).returncode == 0
    expected = json.loads((tmp_path / "out.jsonl").read_text())["filled"]
    asked = [*limba, "serve", str(run), "--port", "0", "--max_batch", "1", "--max_new_tokens", "8"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, text=True, **given) as server:
        try:
            line = server.stdout.readline()
            assert line.startswith(f"{run.name} answers at http://127.0.0.1:"), line
            url = line.split()[3]
            body = json.dumps({"prompt": "the ___ of"}).encode()
            with urllib.request.urlopen(f"{url}v1/completions", body, timeout=60) as reply:
                (choice,) = json.load(reply)["choices"]
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
        finally:
            server.kill()
    assert choice["text"] == blanks.shown(expected)
