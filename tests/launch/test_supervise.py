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
    assert "ended with code 139 at step 12; restart 2 in 0 seconds" in result.stderr
    assert "done, after 2 restarts" in result.stderr
    assert (tmp_path / "run/checkpoint").read_text() == "20"


def test_no_progress_is_given_up_with_longer_and_longer_waits(env, tmp_path):
    ends = " ".join(["0:7:139"] * 9)
    result = launching.call("supervise.sh", "--limit", "2", "--wait", "1", "quickstart", env=env | {"FAKE_ENDS": ends})
    assert result.returncode == 1
    assert re.findall(r"in (\d+) seconds", result.stderr) == ["0", "1"]
    assert "Given up: 2 times in a row without a step beyond 6 (code 139)" in result.stderr
    assert len(_starts(tmp_path)) == 3


def test_an_error_before_the_first_step_is_not_repeated(env, tmp_path):
    result = launching.call("supervise.sh", *QUICK, "quickstart", env=env | {"FAKE_ENDS": "0:0:1"})
    assert result.returncode == 1 and "ended with code 1 before its first step" in result.stderr
    assert len(_starts(tmp_path)) == 1
    wrong = launching.call("supervise.sh", *QUICK, "quickstrat", env=env)
    last = wrong.stderr.splitlines()[-1].partition("Z: ")[2]
    assert wrong.returncode == 1 and last.startswith("there is no recipe quickstrat; gin/recipes has ")


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
    for arguments, words in (
        (("--limit", "x", "q"), "--limit (LIMIT) is 'x'; give a whole number"),
        (("--wait", "-1", "q"), "--wait (WAIT) is '-1'"),
        (("--wait", "99999999999999999999", "q"), "--wait (WAIT) is '99999999999999999999'"),
        (("--nix",), "--nix is not an option"),
    ):
        result = launching.call("supervise.sh", *arguments, env=env)
        assert result.returncode == 2 and words in result.stderr and result.stderr.count("\n") == 1


def test_numbers_are_decimal(env, tmp_path):
    ends = " ".join(["0:0:139"] * 12)
    env = env | {"FAKE_ENDS": ends, "LONGEST_WAIT": "0"}
    result = launching.call("supervise.sh", "--limit", "09", "--wait", "08", "quickstart", env=env)
    assert result.returncode == 1 and "Given up: 9 times in a row" in result.stderr
    assert len(_starts(tmp_path)) == 9


def test_sigterm_in_a_pause_ends_it(env):
    process = subprocess.Popen(
        ["bash", str(launching.ROOT / "launch/supervise.sh"), "--wait", "60", "quickstart"],
        env=env | {"FAKE_ENDS": "0:0:139"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "restart 1 in 60 seconds" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    rest = process.communicate(timeout=20)[1]
    assert process.returncode == 75 and rest.endswith("stopped on request at step 0.\n") and rest.count("\n") == 1


def test_a_command_that_does_not_exist_is_not_repeated(env, tmp_path):
    result = launching.call("supervise.sh", *QUICK, "quickstart", env=env | {"FAKE_ENDS": "0:7:127"})
    assert result.returncode == 1 and len(_starts(tmp_path)) == 1
    assert "Not started again: it ended with code 127: a command of it cannot be run" in result.stderr


def test_an_error_at_once_is_repeated_twice(env, tmp_path):
    """With the error first. A crash after progress is restarted; errors before the next step end it."""
    limba = tmp_path / "venv/bin/limba"
    run = limba.read_text().replace("exec ", "").strip()
    limba.write_text(f"{run}\ncode=$?\n[ $code = 0 ] || echo 'error: SEED is x; give a number.' >&2\nexit $code\n")
    ends = "0:7:139 0:6:1 0:6:1 0:6:1 0:6:1"
    result = launching.call("supervise.sh", *QUICK, "quickstart", env=env | {"FAKE_ENDS": ends})
    assert result.returncode == 1 and len(_starts(tmp_path)) == 4
    last = result.stderr.splitlines()[-1].partition("Z: ")[2]
    assert last.startswith("SEED is x; give a number. Not started again: it ended with code 1 within 60 seconds of its")


TPUS = {"POD_NAME": "limba", "POD_TYPE": "v4-16", "POD_ZONE": "z", "WAIT": "0"}
COMPUTE = TPUS | {"POD_API": "compute", "POD_TYPE": "v5p-16", "POD_ZONE": "us-east5-a", "POD_PROJECT": "p"}


@pytest.fixture
def pod(tmp_path, repository, request):
    """A pod of two workers that is set up, of TPUS or the test's settings; returns its environment and repository."""
    launching.make_environment(tmp_path)
    env = launching.environment(tmp_path, **getattr(request, "param", TPUS))
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


@pytest.mark.parametrize(
    ("pod", "state"), [(TPUS, "PREEMPTED"), (COMPUTE, "TERMINATED")], indirect=["pod"], ids=["tpus", "compute"]
)
def test_a_pod_that_is_taken_is_made_again_with_the_same_commit(pod, state, tmp_path):
    env, repository = pod
    cloud = tmp_path / "cloud"
    before = launching.git(repository, "rev-parse", "HEAD")
    launching.commit(repository, "Later, and not deployed")
    process = subprocess.Popen(
        ["bash", "launch/supervise.sh", "--pod", "quickstart", "--gin.TRAIN_STEPS=40", "--gin.SECONDS=0.1"],
        cwd=repository,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    launching.wait_for(lambda: (tmp_path / "run/checkpoint").exists(), "checkpoint")
    (cloud / "limba/state").write_text(f"{state}\n")
    (cloud / "refuse-scp-once").write_text("Connection reset")  # The new pod's first setup fails.
    for log in cloud.glob("limba/worker-*/limba/logs/worker-*.pid"):
        os.kill(int(log.read_text().split()[0]), signal.SIGKILL)
    assert process.wait(timeout=120) == 0
    said = process.stderr.read()
    assert f"the pod is {state}: creating it" in said and "done, after 2 restarts" in said
    calls = (cloud / "calls").read_text()
    assert calls.index("delete limba") < calls.rindex("create limba") < calls.rindex("--setup")
    made = cloud / "limba/worker-0/limba"
    assert launching.git(made, "rev-parse", "HEAD") == before
    assert (tmp_path / "run/checkpoint").read_text() == "40"
    shutil.rmtree(cloud)


def test_a_run_that_is_going_on_is_watched(pod, tmp_path):
    env, repository = pod
    launching.call("pod.sh", "run", "quickstart", "--gin.SECONDS=0.2", env=env, repository=repository)
    result = launching.call("supervise.sh", "--pod", "quickstart", env=env, repository=repository)
    assert result.returncode == 0 and "it runs already: watching it" in result.stderr
    assert len(_starts(tmp_path)) == 2


DENIED = "ERROR: (gcloud.compute.tpus.tpu-vm.create) PERMISSION_DENIED: no"


def test_on_a_pod_a_refusal_is_not_repeated_and_a_lack_of_capacity_is(pod, tmp_path):
    env, repository = pod
    launching.call("pod.sh", "delete", env=env, repository=repository)
    refuse, calls = tmp_path / "cloud/refuse-create", tmp_path / "cloud/calls"
    calls.write_text("")
    refuse.write_text(DENIED)
    result = launching.call("supervise.sh", "--pod", "quickstart", env=env, repository=repository)
    last = result.stderr.splitlines()[-1].partition("Z: ")[2]
    assert result.returncode == 1 and last.startswith("gcloud's account may not do this in "), result.stderr
    assert calls.read_text().count(" create ") == 1

    refuse.unlink()
    (tmp_path / "cloud/refuse-create-once").write_text("ERROR: (gcloud) no more capacity in the zone")
    result = launching.call("supervise.sh", "--pod", "quickstart", env=env, repository=repository)
    assert result.returncode == 0 and "done, after 1 restarts" in result.stderr, result.stderr
    assert calls.read_text().count(" create ") == 3


def test_a_pod_that_waits_in_the_queue_keeps_its_place(tmp_path, repository):
    launching.make_environment(tmp_path)
    (tmp_path / "cloud/queue").mkdir()
    (tmp_path / "cloud/queue/limba").write_text("waits v4-16 limba\n")
    env = launching.environment(tmp_path, POD_NAME="limba", POD_TYPE="v4-16", POD_ZONE="z", POD_QUEUED="1", WAIT="0")
    result = launching.call("supervise.sh", "--pod", "quickstart", env=env, repository=repository)
    assert result.returncode == 0, result.stderr
    assert "the pod is WAITING_FOR_RESOURCES: waiting for its turn" in result.stderr
    calls = (tmp_path / "cloud/calls").read_text()
    assert " delete " not in calls and " create " not in calls


def test_on_a_pod_a_wrong_recipe_is_not_repeated(pod, tmp_path):
    env, repository = pod
    result = launching.call("supervise.sh", "--pod", "quickstrat", env=env, repository=repository)
    last = result.stderr.splitlines()[-1].partition("Z: ")[2]
    assert result.returncode == 1 and last.startswith("the workers would lack: the recipe quickstrat: there is no ")


def test_a_login_that_expires_ends_the_supervision_and_not_the_run(pod, tmp_path):
    env, repository = pod
    process = subprocess.Popen(
        ["bash", "launch/supervise.sh", "--pod", "quickstart", "--gin.TRAIN_STEPS=20000"],
        cwd=repository,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    launching.wait_for(lambda: (tmp_path / "run/checkpoint").exists(), "checkpoint")
    refuse = tmp_path / "cloud/refuse-describe"
    refuse.write_text("ERROR: (gcloud.compute.tpus.tpu-vm.describe) Reauthentication failed.")
    said = process.communicate(timeout=60)[1]
    assert (
        process.returncode == 1
        and "its login has expired: run `gcloud auth login`. The workers are not stopped" in said
    )
    refuse.unlink()
    assert "process=running" in launching.call("pod.sh", "status", "--plain", env=env, repository=repository).stdout
    launching.call("pod.sh", "kill", env=env, repository=repository)
