"""Where time went, over several starts of a run."""

import ast
import json
import time
from pathlib import Path

import pytest

from limba.reports import goodput
from limba.reports.goodput import Attempt, Goodput

ROOT = Path(__file__).parents[3]


def test_restarts_and_lost_steps_are_counted():
    # Two starts: steps 0 to 40 with a checkpoint at 30, ten seconds of nothing, then on from 30.
    first = Attempt(100.0, 150.0, {"start": 5.0, "compile": 5.0, "step": 40.0}, {0: 0.0, 30: 30.0, 40: 40.0})
    second = Attempt(160.0, 200.0, {"start": 2.0, "step": 36.0, "evaluation": 2.0}, {30: 0.0, 66: 36.0})
    assert goodput.summarize([first, second], [0, 30]) == {
        "start": 7.0, "compile": 5.0, "input": 0.0, "step": 66.0, "checkpoint": 0.0, "evaluation": 2.0, "restart": 10.0,
        "lost": 10.0,
    }  # fmt: skip


def test_the_clock_may_be_set_back(tmp_path, monkeypatch):
    """Between two starts and within one: the kinds of time are those of a clock that was not."""
    seconds = []
    for jump in (0.0, -7200.0):
        clock = _Clock()
        monkeypatch.setattr(goodput, "time", clock)
        folder = tmp_path / str(jump)
        folder.mkdir()
        first = Goodput(folder, 0, clock.monotonic())
        first.begin_steps()
        for step in range(1, 5):
            clock.now += 70.0
            first.step_done(step)
        clock.wall += jump
        second = Goodput(folder, 2, clock.monotonic())
        clock.now += 5.0
        second.begin_steps()
        clock.wall += jump
        clock.now += 140.0
        second.step_done(4)
        second.write()
        third = Goodput(folder, 4, clock.monotonic())
        seconds.append(third.seconds())
    assert seconds[0] == seconds[1] and seconds[0]["lost"] == 140.0 and seconds[0]["step"] == 280.0


# Where the time of day is read, and why it may be wrong there; what waits or measures takes `time.monotonic`.
_WALL_CLOCK = {
    "limba/devices/compilation_cache.py": "compares with the times of files; decides only when to make room",
    "limba/reports/goodput.py": "the time between two processes, which have no other clock in common",
    "limba/reports/mlflow_writer.py": "of a value, for MLflow's curves over hours; shown to people",
    "limba/reports/run_lock.py": "shown to people; the age of a lock on a file system that has no locks",
    "limba/addons/serve/app.py": "of an answer, for clients that know OpenAI's field `created`",
    "limba/addons/pages/run_state.py": "the age of files, shown to people",
    "tasks/sources/remote_files/http_retries.py": "of a date that a server asks to wait for; at most 5 minutes",
    "launch/stamp_lines.py": "shown to people",
}


def test_nothing_else_reads_the_time_of_day():
    found = set()
    for file in [path for folder in ("limba", "tasks", "convert", "launch") for path in (ROOT / folder).rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = ast.unparse(node.func)
                now = name.endswith((".now", ".utcnow", ".today")) and "datetime" in name
                if now or name in ("time.time", "time.time_ns", "time.strftime", "time.localtime", "time.gmtime"):
                    found.add(str(file.relative_to(ROOT)))
    assert found == _WALL_CLOCK.keys()


def test_a_run_from_scratch_after_no_checkpoint_loses_all():
    first = Attempt(0.0, 10.0, {"step": 8.0}, {0: 0.0, 5: 8.0})
    second = Attempt(10.0, 12.0, {"step": 2.0}, {0: 0.0})
    assert goodput.summarize([first, second], [0, 0]) == dict.fromkeys(goodput.KINDS, 0.0) | {"step": 2.0, "lost": 8.0}


class _Clock:
    """Stands in for the module `time`."""

    def __init__(self):
        self.now = 1000.0
        self.wall = 5000.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now + self.wall


@pytest.fixture
def clock(monkeypatch):
    clock = _Clock()
    monkeypatch.setattr(goodput, "time", clock)
    return clock


def test_kinds_are_exclusive_and_sum_to_the_wall_clock(tmp_path, clock):
    kept = Goodput(tmp_path, 0, clock.now - 3.0)
    kept.begin_steps()
    with kept.spending("input"):
        clock.now += 2.0
        with kept.spending("checkpoint"):
            clock.now += 5.0
        clock.now += 1.0
    clock.now += 10.0
    kept.move(1.5, "input", "step")
    seconds = kept.seconds()
    assert seconds == dict.fromkeys(goodput.KINDS, 0.0) | {"start": 3.0, "input": 1.5, "checkpoint": 5.0, "step": 11.5}
    assert sum(seconds.values()) == 21.0
    assert kept.scalars()["goodput/fraction"] == pytest.approx(11.5 / 21)
    assert kept.table().splitlines()[0] == "goodput 54.8% of 21 s, 1 start:"


def test_lines_tell_the_next_start(tmp_path, clock):
    first = Goodput(tmp_path, 0, clock.now)
    first.begin_steps()
    for step in range(1, 101):
        clock.now += 1.0
        first.step_done(step)
        if step == 50:
            first.write()  # a checkpoint
    # Killed at step 100; the last line is of step 60 + 50 = 110 or earlier.
    lines = [json.loads(line) for line in (tmp_path / goodput.FILE_NAME).read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 50]
    (tmp_path / goodput.FILE_NAME).open("a").write('{"began": 1')
    clock.now += 7.0

    second = Goodput(tmp_path, 50, clock.now)
    second.begin_steps()
    clock.now += 20.0
    second.step_done(70)
    # 50 steps and their 50 seconds were after the last line: nobody knows more than that nothing was running.
    assert second.seconds() == dict.fromkeys(goodput.KINDS, 0.0) | {"step": 70.0, "restart": 57.0}
    # A start that was killed before its first step counts too, and one from step 0 loses all steps before it.
    second.write()
    third = Goodput(tmp_path, 0, clock.now)
    third.write()
    assert third.seconds() == dict.fromkeys(goodput.KINDS, 0.0) | {"restart": 57.0, "lost": 70.0}
    assert third.table().splitlines()[0].endswith("3 starts:")
    assert len(goodput.read_attempts(tmp_path)) == 3


def test_only_one_process_writes(tmp_path):
    Goodput(tmp_path, 0, time.monotonic(), writes=False).begin_steps()
    assert not (tmp_path / goodput.FILE_NAME).exists()


def test_asking_writes_no_lines(tmp_path, clock):
    kept = Goodput(tmp_path, 0, clock.now)
    kept.begin_steps()
    for step in range(1, 11):
        clock.now += 1.0
        kept.step_done(step)
        assert kept.scalars()["goodput/step_seconds"] == step
    assert len((tmp_path / goodput.FILE_NAME).read_text().splitlines()) == 1
    kept.table()
    assert json.loads((tmp_path / goodput.FILE_NAME).read_text().splitlines()[-1])["step"] == 10
