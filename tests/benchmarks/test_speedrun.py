"""The speedrun's order of work, its table and its line, and the data that it brings."""

import os
import re
import signal
import subprocess
import threading

import pytest

from benchmarks import speedrun
from benchmarks.speedrun import Result
from limba.addons.instructions import speedrun as data

RESULTS = [
    Result(seed, 1.95 + seed / 100, 40.0 + seed, 42.5, (2.5, 0.5), "65,536 x 128", "1 NVIDIA H100", "abc")
    for seed in (0, 1, 2)
]


@pytest.fixture
def calls(monkeypatch):
    """What would be run, by program, recipe and the seed's folder."""
    made = []

    def record(work, module, *arguments):
        recipe = next((x.rpartition("/")[2] for x in arguments if x.startswith("--gin_file=gin/recipes")), "")
        folder = next((x.partition("'")[2][:-1] for x in arguments if x.startswith("--gin.MODEL_DIR=")), "")
        made.append((arguments[0] if arguments else module, recipe, folder.removeprefix(f"{work}/"), arguments))

    monkeypatch.setattr(speedrun, "_run", record)
    return made


def test_three_seeds_are_trained_one_after_another_and_what_is_done_is_not(calls, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(speedrun, "_is_done", lambda folder: str(folder).endswith("seed-1/pretrained"))
    speedrun.main(["--work", str(tmp_path), "--finetune_gin", "my.gin"])
    assert [call[:3] for call in calls] == [
        ("limba.addons.instructions.speedrun", "", ""),
        ("train", "speedrun.gin", "seed-0/pretrained"),
        ("train", "speedrun_instructions.gin", "seed-0/instructions"),
        ("train", "speedrun_instructions.gin", "seed-1/instructions"),
        ("train", "speedrun.gin", "seed-2/pretrained"),
        ("train", "speedrun_instructions.gin", "seed-2/instructions"),
    ]
    assert "--gin_file=my.gin" not in calls[1][3] and "--gin_file=my.gin" in calls[2][3]
    assert f"--gin.INITIAL_CHECKPOINT_PATH='{tmp_path}/seed-2/pretrained'" in calls[-1][3]
    assert "--gin.RANDOM_SEED=2" in calls[-1][3] and "--gin.DATASET_SEED=2" in calls[-1][3]
    said = capsys.readouterr().out
    assert "== seed 1, pretrained: done\n" in said and "No seed has finished both trainings yet." in said


def test_the_table_has_means_and_half_of_the_range():
    *rows, remark = speedrun.table(RESULTS).splitlines()[1:]
    assert [re.split("  +", row) for row in rows] == [
        ["seed 0", "1.9500", "40.00", "42.50", "2.50", "0.50"],
        ["seed 1", "1.9600", "41.00", "42.50", "2.50", "0.50"],
        ["seed 2", "1.9700", "42.00", "42.50", "2.50", "0.50"],
        ["mean", "1.9600 ± 0.0100", "41.00 ± 1.00", "42.50 ± 0.00", "2.50", "0.50"],
        ["nanoT5", "1.953", "40.7"],
    ]
    assert "65,536 x 128 rows, its RougeL that of a longer pre-training" in remark
    line = speedrun.leaderboard_line(RESULTS, ["a/micro.gin"]).splitlines()[-1]
    assert line == (
        "| abc | 1 NVIDIA H100 | 65,536 x 128 | micro.gin | 1.9600 ± 0.0100 | 41.00 ± 1.00 | 42.50 ± 0.00 | 3.00 | 3 |"
    )


def test_a_plan_is_of_three_seeds(calls, tmp_path):
    speedrun.main(["--work", str(tmp_path), "--plan", "h100-1=2.5", "--pretrain_gin", "my.gin"])
    flags = ("plan", "--estimate_only", "--topology", "h100-1", "--price", "2.5")
    assert [call[3] for call in calls] == [
        (*flags, "--gin.TRAIN_STEPS=196608", "gin/recipes/speedrun.gin", "my.gin"),
        (*flags, "--gin.TRAIN_STEPS=56565", "gin/recipes/speedrun_instructions.gin"),
    ]
    with pytest.raises(SystemExit):
        speedrun.main(["--work", str(tmp_path), "--plan", "h100-1"])


def test_a_program_that_is_asked_to_stop_ends_by_itself(tmp_path, monkeypatch):
    program = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); time.sleep(30)"
    (tmp_path / "sleeper.py").write_text(f"{program}\n")
    (tmp_path / "failing.py").write_text("raise SystemExit(3)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SystemExit) as failed:
        speedrun._run(tmp_path, "failing")
    assert failed.value.code == 3
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    timer.start()
    with pytest.raises(SystemExit) as stopped:
        speedrun._run(tmp_path, "sleeper")
    assert stopped.value.code == 75 and signal.getsignal(signal.SIGTERM) is before


def _git(folder, *arguments):
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    return subprocess.run(["git", "-C", folder, *who, *arguments], check=True, capture_output=True, text=True).stdout


def test_instructions_are_those_of_the_commit(tmp_path):
    source, folder = tmp_path / "source", tmp_path / "brought"
    for name in ("tasks", "splits", "src"):
        (source / name).mkdir(parents=True)
        (source / name / "file").write_text("pinned")
    _git(source, "init", "--quiet")
    for text in ("pinned", "later"):
        (source / "tasks/file").write_text(text)
        _git(source, "add", "--all")
        _git(source, "commit", "--quiet", "--message", text)
    pinned = _git(source, "rev-parse", "HEAD~1").strip()
    data.bring_instructions(folder, str(source), pinned)
    assert (folder / "tasks/file").read_text() == "pinned"
    assert sorted(path.name for path in folder.iterdir()) == ["splits", "tasks"]
    data.bring_instructions(folder, "nowhere", pinned)  # It is there.
    with pytest.raises(
        RuntimeError, match=r"`git fetch` of .* fails .*not our ref.*name the folder with LIMBA_SPEEDRUN_INSTR"
    ):
        data.bring_instructions(tmp_path / "other", str(source), "0" * 40)
    assert not (tmp_path / "other").exists()
