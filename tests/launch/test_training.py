"""Real workers through the pod launcher train as one process does, also when one is killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests import compilation, line
from tests.launch import launching

STEPS = 60
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """With `corpus/`, `vocab/spiece.model` and an empty cloud."""
    made = tmp_path_factory.mktemp("training")
    line.write_corpus(made / "corpus")
    line.write_vocabulary(made / "corpus", made / "vocab" / "spiece.model")
    (made / "cloud").mkdir()
    (made / "run").mkdir()
    return made


def _environment(directory):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    own = {"VENV": str(Path(sys.executable).parent.parent), "LIMBA_QUICKSTART_DIR": str(directory)}
    own |= {"FAKE_PORT": str(port), "POD_NAME": "limba", "POD_TYPE": "v4-16", "POD_ZONE": "z", "JAX_PLATFORMS": "cpu"}
    own |= {"XLA_FLAGS": compilation.FAST}  # of one device each
    # The workers are on this machine, and have its files.
    (directory / "worker-env").write_text(f"LIMBA_QUICKSTART_DIR={directory}\n")
    own |= {"POD_ON_WORKERS": str(directory), "POD_WORKER_ENV": str(directory / "worker-env")}
    return launching.environment(directory, **own)


def _arguments(directory, name):
    """Of launch/worker.sh."""
    return ["quickstart", "--initialization_timeout=300", *line.train_arguments(directory, directory / name, STEPS)[2:]]


def _losses(model_dir):
    losses = {}
    path = model_dir / "metrics.jsonl"
    for text in path.read_text().splitlines() if path.exists() else []:
        if text.endswith("}") and (x := json.loads(text))["dataset"] == "train":
            losses[x["step"]] = x["loss"]
    return losses


def _assert_same(losses, expected):
    assert sorted(losses) == sorted(expected)
    worst = max(abs(losses[step] - expected[step]) / abs(expected[step]) for step in expected)
    assert worst < 1e-5, worst


@pytest.fixture(scope="module")
def whole(directory, forks):
    """The losses of one process from beginning to end."""
    result = line.forked(forks, directory, *line.train_arguments(directory, directory / "whole", STEPS))
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr
    return _losses(directory / "whole")


def test_two_workers_one_is_killed_and_the_supervisor_resumes(directory, whole, repository):
    env = _environment(directory)
    for verb in ("create", "setup"):
        done = launching.call("pod.sh", verb, env=env, repository=repository)
        assert done.returncode == 0, done.stdout + done.stderr
    with (directory / "supervise.log").open("w") as log:
        supervisor = subprocess.Popen(
            ["bash", "launch/supervise.sh", "--pod", *_arguments(directory, "pod")],
            cwd=repository,
            env=env,
            stdout=log,
            stderr=log,
        )
    try:
        launching.wait_for(lambda: max(_losses(directory / "pod"), default=0) >= 30, "step 30", 900)
        worker = directory / "cloud/limba/worker-1/limba"
        os.kill(int((worker / "logs/worker-1.pid").read_text().split()[0]), signal.SIGKILL)
        code = supervisor.wait(timeout=900)
    finally:
        if supervisor.poll() is None:  # It failed: nothing stays behind.
            supervisor.kill()
            launching.call("pod.sh", "kill", env=env, repository=repository)
    said = (directory / "supervise.log").read_text()
    logs = launching.call("pod.sh", "logs", "200", env=env, repository=repository).stdout
    assert code == 0, said + logs
    assert "restart 1 in 0 seconds" in said and "done, after 1 restarts" in said
    assert "worker 1 (" in logs and "gave no sign of life" in logs  # the other one ended, with its name
    # Both took part: the log of each has its steps.
    assert {found[0] for found in re.findall(rf"\[([01])\].* step {STEPS}/{STEPS}: ", logs)} == {"0", "1"}, logs

    assert sorted(whole) == list(range(1, STEPS + 1))
    _assert_same(_losses(directory / "pod"), whole)
