"""The job of SLURM: sets up once, starts a process per GPU, and queues itself again."""

import shutil

import pytest

from tests.launch import launching


@pytest.fixture
def job(tmp_path, repository):
    launching.make_environment(tmp_path)
    shutil.rmtree(repository / "logs", ignore_errors=True)
    slurm = {"SLURM_SUBMIT_DIR": str(repository), "SLURM_JOB_ID": "41", "SLURM_NTASKS": "2"}
    env = launching.environment(tmp_path, **slurm)

    def submit(**extra):
        arguments = ("quickstart", "--gin.TRAIN_STEPS=8")
        result = launching.call("slurm.sbatch", *arguments, env=env | extra, repository=repository)
        calls = tmp_path / "cloud/calls"
        said = calls.read_text()
        calls.unlink()
        return result, said

    return submit, repository, tmp_path / "run"


def test_to_the_end(job):
    submit, repository, run = job
    result, calls = submit()
    assert result.returncode == 0, result.stderr
    assert calls.splitlines()[0] == "srun --nodes=1 --ntasks=1 bash launch/worker.sh --setup"
    assert "requeue" not in calls
    for index in (0, 1):
        assert "8/8 [" in (repository / f"logs/worker-{index}.log").read_text().splitlines()[-1]
    assert len((run / "starts").read_text().splitlines()) == 2


def test_preempted_and_again(job):
    submit, _, run = job
    result, calls = submit(FAKE_ENDS="0:4:75")
    assert result.returncode == 75
    assert calls.splitlines()[-1] == "scontrol requeue 41"
    again, _ = submit(SLURM_RESTART_COUNT="1")
    assert again.returncode == 0, again.stderr
    starts = [line.split() for line in (run / "starts").read_text().splitlines()[2:]]
    assert sorted(index for index, _, _ in starts) == ["0", "1"]


def test_it_gives_up_and_can_be_told_to(job):
    submit, repository, _ = job
    _, calls = submit(FAKE_ENDS="0:0:1", SLURM_RESTART_COUNT="20")
    assert "requeue" not in calls
    (repository / "logs/no-requeue-41").touch()
    _, calls = submit(FAKE_ENDS="0:0:1", SLURM_RESTART_COUNT="0")
    assert "requeue" not in calls
