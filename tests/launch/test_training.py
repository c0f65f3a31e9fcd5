"""Real workers through the pod launcher train together."""

import json
import re
import socket
import sys
from pathlib import Path

import pytest

from tests import compilation, line
from tests.launch import launching

STEPS = 4
# What pod.sh and the supervisor do is in test_pod.py and test_supervise.py, the flags of worker.sh are in
# test_worker.py, and workers that train together in tests/limba/workers/test_many_processes.py.
pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


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


def test_two_workers_train_and_the_supervisor_ends_with_them(directory, repository):
    """That they train as one process, and what follows a kill: tests/limba/workers/test_many_processes.py."""
    env = _environment(directory)
    for verb in ("create", "setup"):
        done = launching.call("pod.sh", verb, env=env, repository=repository)
        assert done.returncode == 0, done.stdout + done.stderr
    try:
        ended = launching.call("supervise.sh", "--pod", *_arguments(directory, "pod"), env=env, repository=repository)
    finally:
        logs = launching.call("pod.sh", "logs", "200", env=env, repository=repository).stdout
        launching.call("pod.sh", "kill", env=env, repository=repository)  # If it failed, nothing stays behind.
    assert ended.returncode == 0 and "done, after 0 restarts" in ended.stderr, ended.stderr + logs
    # Both took part: the log of each has its steps.
    assert {found[0] for found in re.findall(rf"\[([01])\].* step {STEPS}/{STEPS}: ", logs)} == {"0", "1"}, logs
    assert sorted(_losses(directory / "pod")) == list(range(1, STEPS + 1))
