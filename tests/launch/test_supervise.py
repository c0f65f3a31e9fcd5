"""The supervisor: again after a stop or a crash, with a limit; a pod that was taken is made again."""

import os
import re
import shutil
import signal
import subprocess

import pytest

from tests.launch import launching

QUICK = ("--wait", "0")


@pytest.fixture
def env(tmp_path):
    launching.make_environment(tmp_path)
    return launching.environment(tmp_path, LIMBA_LOGS=str(tmp_path / "logs"))


def _starts(tmp_path):
    """[process index, starts before, first step] of each start."""
    return [[int(x) for x in line.split()] for line in (tmp_path / "run/starts").read_text().splitlines()]


def test_a_preemption_and_a_crash(env, tmp_path):
    result = launching.call("supervise.sh", *QUICK, "quickstart", env=env | {"FAKE_ENDS": "0:7:75 0:13:139"})
    assert result.returncode == 0, result.stderr
    assert _starts(tmp_path) == [[0, 0, 0], [0, 1, 5], [0, 2, 10]]
    assert "ended with code 75 at step 6; restart 1 in 0 seconds" in result.stderr
    assert "done, after 2 restarts" in result.stderr
    assert (tmp_path / "run/checkpoint").read_text() == "20"


def test_no_progress_is_given_up_with_longer_and_longer_waits(env, tmp_path):
    ends = " ".join(["0:7:139"] * 9)
    result = launching.call("supervise.sh", "--limit", "2", "--wait", "1", "quickstart", env=env | {"FAKE_ENDS": ends})
    assert result.returncode == 1
    assert re.findall(r"in (\d+) seconds", result.stderr) == ["0", "1"]
    assert "given up: 2 times in a row without a step beyond 6 (code 139)" in result.stderr
    assert len(_starts(tmp_path)) == 3


def test_an_error_before_the_first_step_is_not_repeated(env, tmp_path):
    result = launching.call("supervise.sh", *QUICK, "quickstart", env=env | {"FAKE_ENDS": "0:0:1"})
    assert result.returncode == 1 and "ended with code 1 before its first step" in result.stderr
    assert len(_starts(tmp_path)) == 1
    wrong = launching.call("supervise.sh", *QUICK, "quickstrat", env=env)
    assert wrong.returncode == 1 and "no recipe quickstrat" in wrong.stderr


@pytest.mark.parametrize("who", ["supervisor", "worker"])
def test_stopping_ends_the_supervision_too(env, tmp_path, who):
    process = subprocess.Popen(
        ["bash", str(launching.ROOT / "launch/supervise.sh"), "quickstart", "--gin.TRAIN_STEPS=20000"],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    launching.wait_for(lambda: (tmp_path / "run/checkpoint").exists(), "checkpoint")
    if who == "supervisor":
        process.send_signal(signal.SIGTERM)
    else:
        launching.call("worker.sh", "--stop", "20", env=env)
    assert process.wait(timeout=30) == 75
    assert "stopped on request at step" in process.stderr.read()
    assert len(_starts(tmp_path)) == 1


def test_detached(env, tmp_path):
    result = launching.call("supervise.sh", "--detach", *QUICK, "quickstart", env=env | {"FAKE_ENDS": "0:7:75"})
    assert result.returncode == 0 and "supervising as process" in result.stdout
    log = tmp_path / "logs/supervise.log"
    launching.wait_for(lambda: "done, after 1 restarts" in log.read_text(), "end")


def test_wrong_calls_are_named(env):
    for arguments, words in ((("--limit", "x", "q"), "whole numbers"), (("--nix",), "--nix is no option")):
        result = launching.call("supervise.sh", *arguments, env=env)
        assert result.returncode == 2 and words in result.stderr


@pytest.fixture
def pod(tmp_path, repository):
    """A pod of two workers that is set up; returns its environment and repository."""
    launching.make_environment(tmp_path)
    env = launching.environment(tmp_path, POD_TYPE="v4-16", POD_ZONE="z", WAIT="0")
    for verb in ("create", "setup"):
        assert launching.call("pod.sh", verb, env=env, repository=repository).returncode == 0
    return env, repository


def test_on_a_pod_a_worker_that_is_killed(pod, tmp_path):
    env, repository = pod
    result = launching.call(
        "supervise.sh", "--pod", "quickstart", env=env | {"FAKE_ENDS": "1:7:137"}, repository=repository
    )
    assert result.returncode == 0, result.stderr
    starts = sorted(_starts(tmp_path))
    assert [start[:2] for start in starts] == [[0, 0], [0, 1], [1, 0], [1, 1]], result.stderr
    assert "ended with code 137 at step" in result.stderr and "done, after 1 restarts" in result.stderr


def test_a_pod_that_is_taken_is_made_again_with_the_same_commit(pod, tmp_path):
    env, repository = pod
    cloud = tmp_path / "cloud"
    before = launching.git(repository, "rev-parse", "HEAD")
    launching.commit(repository, "Later, and not deployed")
    process = subprocess.Popen(
        ["bash", "launch/supervise.sh", "--pod", "quickstart", "--gin.TRAIN_STEPS=60", "--gin.SECONDS=0.2"],
        cwd=repository,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    launching.wait_for(lambda: (tmp_path / "run/checkpoint").exists(), "checkpoint")
    (cloud / "limba/state").write_text("PREEMPTED\n")
    for log in cloud.glob("limba/worker-*/limba/logs/worker-*.pid"):
        os.kill(int(log.read_text().split()[0]), signal.SIGKILL)
    assert process.wait(timeout=120) == 0
    said = process.stderr.read()
    assert "the pod is PREEMPTED: creating it" in said and "done, after 1 restarts" in said
    calls = (cloud / "calls").read_text()
    assert calls.index("delete limba") < calls.rindex("create limba") < calls.rindex("--setup")
    made = cloud / "limba/worker-0/limba"
    assert launching.git(made, "rev-parse", "HEAD") == before
    assert (tmp_path / "run/checkpoint").read_text() == "60"
    shutil.rmtree(cloud)


def test_a_run_that_is_going_on_is_watched(pod, tmp_path):
    env, repository = pod
    launching.call("pod.sh", "run", "quickstart", "--gin.SECONDS=0.2", env=env, repository=repository)
    result = launching.call("supervise.sh", "--pod", "quickstart", env=env, repository=repository)
    assert result.returncode == 0 and "it runs already: watching it" in result.stderr
    assert len(_starts(tmp_path)) == 2
