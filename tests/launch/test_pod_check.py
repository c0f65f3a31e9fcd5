"""`launch/pod.sh check` and `ssh`: the bucket, its region, every worker's accelerator; a shell on one worker."""

import importlib.util
import subprocess
import sys

import pytest

from tests.launch import launching

BUCKET = "gs://mine/ro"


@pytest.fixture
def pod(tmp_path):
    """Two machines that are set up, whose JAX has a TPU; `cpu-1` in the cloud takes that of worker 1 away."""
    launching.make_environment(tmp_path)
    python = tmp_path / "venv/bin/python"
    python.unlink()
    python.write_text(
        "#!/bin/sh\n"
        f'[ "${{1##*/}}" = check_worker.py ] || exec {sys.executable} "$@"\n'
        "kind=tpu; [ ! -f $FAKE_CLOUD/cpu-$LIMBA_PROCESS_INDEX ] || kind=cpu\n"
        'echo "accelerator=$kind devices=4 x TPU v4 asked=cpu"; echo "ok: $2 can be written from this worker"\n'
    )
    python.chmod(0o755)
    cloud = tmp_path / "cloud"
    (cloud / "gs/mine/ro").mkdir(parents=True)
    (cloud / "gs/mine.location").write_text("US-CENTRAL2\n")
    env = launching.environment(tmp_path, POD_NAME="limba", POD_TYPE="v4-16", POD_ZONE="us-central2-b")

    def verb(*arguments, **extra):
        return launching.call("pod.sh", *arguments, env=env | extra)

    def make():
        assert verb("create").returncode == 0
        for i in (0, 1):
            (cloud / f"limba/worker-{i}/limba").symlink_to(launching.ROOT)

    return verb, make, cloud


def test_before_the_pod_exists(pod):
    verb, _, cloud = pod
    result = verb("check", "ro_t5_base", f"--gin.MODEL_DIR='{BUCKET}'")
    assert result.returncode == 0 and result.stdout.splitlines() == [
        f"ok: {BUCKET} can be written from here",
        "ok: gs://mine is in the pod's region, us-central2",
        "the pod is ABSENT: check again after `pod.sh create` and `pod.sh setup`, for the accelerators of its workers.",
    ], result.stderr
    assert not list((cloud / "gs/mine/ro").iterdir())
    elsewhere = verb("check", "--zone", "europe-west4-a", MODEL_DIR=BUCKET)
    assert (
        elsewhere.returncode == 0
        and "warning: gs://mine is in us-central2 and the pod in europe-west4" in elsewhere.stderr
    )


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "ERROR: (gcloud.storage.cp) HTTPError 403: me does not have storage.objects.create",
            "your account may not write in",
        ),
        ("ERROR: (gcloud.storage.cp) gs://mine not found: 404.", "there is no bucket gs://mine: check its name"),
        ("ERROR: (gcloud.storage.cp) Reauthentication failed.", "its login has expired"),
    ],
)
def test_a_bucket_that_refuses(pod, message, words):
    verb, _, cloud = pod
    (cloud / "refuse-storage-cp").write_text(message)
    result = verb("check", "--bucket", BUCKET)
    assert result.returncode == 2 and result.stderr.startswith("error: ") and words in result.stderr.splitlines()[0]
    assert " tpus " not in (cloud / "calls").read_text()


def test_a_bucket_in_which_nothing_can_be_removed(pod):
    verb, _, cloud = pod
    (cloud / "refuse-storage-rm").write_text("HTTPError 403: me does not have storage.objects.delete access")
    result = verb("check", "--bucket", BUCKET)
    assert result.returncode == 2 and f"error: your account may not remove {BUCKET}/.limba-check-" in result.stderr


def test_the_bucket_is_needed(pod):
    verb, _, _ = pod
    for value in ("", "runs/mine", "gs://"):
        result = verb("check", *(["--bucket", value] if value else []))
        assert result.returncode == 2 and f"is '{value}'; check needs the bucket of the run" in result.stderr


def test_a_worker_that_falls_back_to_the_cpu_is_named(pod):
    verb, make, cloud = pod
    make()
    good = verb("check", "--bucket", BUCKET)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "[1] accelerator=tpu devices=4 x TPU v4" in good.stdout
    assert f"[0] ok: {BUCKET} can be written from this worker" in good.stdout
    (cloud / "cpu-1").touch()
    bad = verb("check", "--bucket", BUCKET)
    assert bad.returncode == 1 and "error: JAX has no accelerator and uses the CPU on worker 1 of 2." in bad.stderr


def test_a_shell_on_one_worker(pod, tmp_path):
    verb, make, cloud = pod
    make()
    env = launching.environment(tmp_path, POD_NAME="limba", POD_TYPE="v4-16", POD_ZONE="us-central2-b")
    command = ["bash", str(launching.ROOT / "launch/pod.sh"), "ssh", "01"]
    shell = subprocess.run(command, env=env, input="pwd\n", capture_output=True, text=True, check=False)
    assert shell.returncode == 0 and shell.stdout == f"{cloud}/limba/worker-1\n", shell.stderr
    wrong = verb("ssh", "2")
    assert wrong.returncode == 2 and "ssh takes the number of a worker, 0 to 1, not '2'" in wrong.stderr
    hosts = verb("ssh", "--dry-run", "--hosts", "alpha,beta", "1")
    assert hosts.stdout == "ssh -t -o ConnectTimeout=15 -- beta\n"


def _check_worker():
    spec = importlib.util.spec_from_file_location("check_worker", launching.ROOT / "launch/check_worker.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_a_worker_says(tmp_path, capsys, monkeypatch):
    worker = _check_worker()
    devices = {"backend": "tpu", "devices": {"TPU v4": 4}, "messages": []}
    monkeypatch.setattr(worker.environment, "ask_jax", lambda timeout: devices)
    assert worker.main(str(tmp_path / "run")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("accelerator=tpu devices=4 x TPU v4 asked=")
    assert lines[1] == f"ok: {tmp_path}/run can be written from this worker" and not list((tmp_path / "run").iterdir())
    (tmp_path / "file").touch()
    assert worker.main(str(tmp_path / "file")) == 1
    assert (
        f"error: this worker cannot write to {tmp_path}/file; a TPU's service account needs" in capsys.readouterr().out
    )
    monkeypatch.setattr(worker.environment, "ask_jax", lambda timeout: {"error": "JAX did not answer"})
    assert worker.main() == 1 and capsys.readouterr().out == "error: JAX did not answer\n"


def test_a_worker_asks_its_own_jax(tmp_path):
    launching.make_environment(tmp_path)
    python = tmp_path / "venv/bin/python"
    python.unlink()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # a link would not find the packages of the tests
    python.chmod(0o755)
    env = launching.environment(tmp_path, LIMBA_LOGS=str(tmp_path / "logs"), JAX_PLATFORMS="cpu")
    result = launching.call("worker.sh", "--check", str(tmp_path / "run"), env=env)
    assert result.returncode == 0, result.stderr
    assert "accelerator=cpu devices=1 x cpu asked=cpu" in result.stdout and "can be written" in result.stdout
