"""launch/Dockerfile without Docker: its command, started on this machine, answers its health check and completions."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import urllib.request

import pytest

from limba.addons.engines.to_ct2 import to_ct2
from tests import house
from tests.convert.conftest import UNTIED, new_run, spiece_model  # noqa: F401, fixtures

pytest.importorskip("ctranslate2", reason="pip install 'limba[ct2]'")


def _instructions():
    """The instructions in order: `[(name, the rest)]`."""
    text = (house.ROOT / "launch/Dockerfile").read_text("utf-8")
    lines = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ").splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line]


def _command(name):
    (found,) = (re.search(r"\[.*\]", rest)[0] for instruction, rest in _instructions() if instruction == name)
    return json.loads(found)


def test_what_it_copies_and_installs_is_there():
    found = _instructions()
    project = tomllib.loads((house.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (extras,) = re.findall(r"\.\[(.*?)\]", dict(found)["RUN"])
    assert extras == "serve,ct2" and {*extras.split(",")} <= project["optional-dependencies"].keys()
    copied = {name for instruction, rest in found if instruction == "COPY" for name in rest.split()[:-1]}
    assert {"pyproject.toml", *house.PACKAGES, "gin", project["readme"]} <= copied
    assert all((house.ROOT / name).exists() for name in copied)
    names = [instruction for instruction, _ in found]
    assert dict(found)["USER"] == "1000" and names.index("RUN") < names.index("USER") < names.index("ENTRYPOINT")


def test_its_command_serves_and_is_healthy(new_run, tmp_path):  # noqa: F811
    run = new_run(tmp_path / "run", num_encoder_layers=1, num_decoder_layers=1, **UNTIED)
    to_ct2(run, tmp_path / "model", verify=False)
    words = {"0.0.0.0": "127.0.0.1", "8000": "0", "/model": str(tmp_path / "model")}
    limba, *flags = (words.get(word, word) for word in [*_command("ENTRYPOINT"), *_command("CMD")])
    assert limba == "limba" and ("EXPOSE", "8000") in _instructions()
    given = {**os.environ, "PYTHONPATH": str(house.ROOT), "LIMBA_SERVE_TOKEN": "s3cret"}
    command = [sys.executable, "-m", "limba.cli", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=given, cwd=tmp_path) as server:
        try:
            url = server.stdout.readline().split()[3]
            python, *check = (word.replace("http://127.0.0.1:8000/", url) for word in _command("HEALTHCHECK"))
            assert python == "python" and url in check[-1]
            subprocess.run([sys.executable, *check], check=True, timeout=30)
            asked = urllib.request.Request(f"{url}v1/completions", b'{"prompt": "ba ce"}')
            asked.add_header("Authorization", "Bearer s3cret")
            with urllib.request.urlopen(asked, timeout=30) as reply:
                assert json.load(reply)["usage"]["completion_tokens"] > 0
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 0
            assert subprocess.run([sys.executable, *check], capture_output=True, timeout=30).returncode == 1
        finally:
            server.kill()
