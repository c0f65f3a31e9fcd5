"""What manifests start, as processes of this machine: SIGTERM, a checkpoint, and a second start that resumes."""

import signal
import subprocess
import sys

import pytest
import yaml

from tests import house
from tests.launch import launching

RUN = ("quickstart", "--gin.MODEL_DIR='gs://b/run'", "--gin.TRAIN_STEPS=400")


def _written(*words):
    command = [sys.executable, "-m", "limba", "launch", "--to", *words]
    return subprocess.run(command, cwd=launching.ROOT, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def env(tmp_path):
    launching.make_environment(tmp_path)
    return launching.environment(tmp_path, LIMBA_LOGS=str(tmp_path / "logs"))


def test_the_image_has_what_a_worker_runs():
    lines = (launching.ROOT / "launch/train.Dockerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    assert copied == {*house.PACKAGES, "gin", "launch", "pyproject.toml", "setup.py", "README.md", "LICENSE"}
    assert all((launching.ROOT / name).exists() for name in copied)
    # The exact versions first; after that nothing is installed at a start.
    assert lines.index("RUN bash launch/worker.sh --setup") < lines.index("ENV VENV=/limba/.venv LOCK=none")


def test_pods_of_a_jobset_save_and_resume(env, tmp_path):
    jobset = yaml.safe_load(_written("jobset", "--topology", "h100-16", "--image", "i", *RUN))
    (job,) = jobset["spec"]["replicatedJobs"]
    pods = job["template"]["spec"]["completions"]
    container = job["template"]["spec"]["template"]["spec"]["containers"][0]

    def start():
        """The container's command in each pod, as Kubernetes starts it."""
        started = []
        for index in range(pods):
            given = {one["name"]: one.get("value", str(index)) for one in container["env"]}
            started.append(
                subprocess.Popen(
                    container["command"], cwd=launching.ROOT, env=env | given, stdout=subprocess.DEVNULL, text=True
                )
            )
        return started

    first = start()
    saved = tmp_path / "run/checkpoint"
    launching.wait_for(lambda: saved.exists() and int(saved.read_text()) >= 5, "checkpoint")
    for pod in first:  # A node that is taken away, or `kubectl delete`.
        pod.send_signal(signal.SIGTERM)
    assert [pod.wait(60) for pod in first] == [75, 75]
    step = int(saved.read_text())
    assert 5 <= step < 400
    # 75 is no code of the pod failure policy, so the JobSet starts the pods again.
    assert 75 not in job["template"]["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]
    assert [pod.wait(120) for pod in start()] == [0, 0]
    starts = sorted((tmp_path / "run/starts").read_text().splitlines())
    assert starts == [f"{index} {attempt} {(0, step)[attempt]}" for index in (0, 1) for attempt in (0, 1)]


def test_the_task_of_skypilot_is_one_of_its_nodes(env, tmp_path):
    task = yaml.safe_load(_written("skypilot", "--topology", "h100-16", *RUN[:2], "--gin.TRAIN_STEPS=2"))
    sky = {"SKYPILOT_NODE_IPS": "127.0.0.1\n10.0.0.2", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}
    done = subprocess.run(
        ["bash", "-c", task["run"]], cwd=launching.ROOT, env=env | task["envs"] | sky | {"FAKE_ALONE": "1"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "== worker 1 of 2 on " in (tmp_path / "logs/worker-1.log").read_text()
    assert '"LIMBA_COORDINATOR_ADDRESS": "127.0.0.1:8476"' in (tmp_path / "run/environment").read_text()


def test_the_job_of_slurm_runs_in_its_container(env, tmp_path, repository):
    box = ("--topology", "h100-2", "--image", "nvcr#i:1", "--mount", "/data:/data")
    script = _written("slurm-container", *box, *RUN[:2], "--gin.TRAIN_STEPS=2")
    assert "\n#SBATCH --ntasks-per-node=2\n#SBATCH --gpus-per-node=2\n" in script
    slurm = {"SLURM_SUBMIT_DIR": str(repository), "SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}
    done = subprocess.run(
        ["bash", "-c", script], env=env | slurm, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    (call,) = (tmp_path / "cloud/calls").read_text().splitlines()
    assert call == (
        f"srun --kill-on-bad-exit=0 --wait=600 --container-image=nvcr#i:1 --container-workdir={repository} "
        f"--container-mounts={repository}:{repository},/data:/data bash launch/worker.sh quickstart {RUN[1]} "
        "--gin.TRAIN_STEPS=2"
    )
