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

    def submit(recipe="quickstart", **extra):
        arguments = (recipe, "--gin.TRAIN_STEPS=8")
        result = launching.call("slurm.sbatch", *arguments, env=env | extra, repository=repository)
        calls = tmp_path / "cloud/calls"
        said = calls.read_text() if calls.exists() else ""
        calls.unlink(missing_ok=True)
        return result, said

    return submit, repository, tmp_path / "run"


def test_to_the_end(job):
    submit, repository, run = job
    result, calls = submit()
    assert result.returncode == 0, result.stderr
    assert calls.splitlines()[0] == "srun --nodes=1 --ntasks=1 bash launch/worker.sh --setup"
    assert "requeue" not in calls
    for index in (0, 1):
        assert " step 8/8: " in (repository / f"logs/worker-{index}.log").read_text().splitlines()[-1]
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
    given_up, calls = submit(FAKE_ENDS="0:4:139", SLURM_RESTART_COUNT="20")
    assert "requeue" not in calls and "given up" in given_up.stderr
    (repository / "logs/no-requeue-41").touch()
    told, calls = submit(FAKE_ENDS="9:9:9 0:5:139", SLURM_RESTART_COUNT="0")
    assert "requeue" not in calls and "is not to be queued again" in told.stdout


def test_what_would_come_again_is_not_queued_again(job):
    submit, _, _ = job
    unknown, calls = submit("nosuchrecipe")
    assert unknown.returncode == 2 and "requeue" not in calls
    assert (
        "there is no recipe nosuchrecipe" in unknown.stderr
        and "ended with code 2: that is wrong usage" in unknown.stderr
    )
    at_once, calls = submit(FAKE_ENDS="0:0:1 1:0:1")
    assert at_once.returncode == 1 and "requeue" not in calls
    assert "ended with code 1: that is an error at once" in at_once.stderr
    absent, calls = submit(FAKE_ENDS="9:9:9 9:9:9 0:0:127 1:0:127")
    assert absent.returncode == 127 and "requeue" not in calls
    wrong, calls = submit(MAX_RESTARTS="many")
    assert wrong.returncode == 2 and "MAX_RESTARTS is 'many'" in wrong.stderr and calls == ""
