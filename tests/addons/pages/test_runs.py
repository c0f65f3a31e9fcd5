"""`limba runs`: what it says of runs, from their files."""

import json
import os
import subprocess
import sys

import pytest

from limba.addons.pages import required_packages, run_curves, run_state, runs_command, runs_table
from limba.reports import run_end, run_lock, text_width
from tests import house
from tests.addons.pages.made_up_runs import make_run, write_lines


def _shown(capsys, *arguments):
    assert runs_command.main([str(x) for x in arguments]) == 0
    return capsys.readouterr().out


def test_a_table_has_steps_losses_speed_and_state(tmp_path, capsys):
    make_run(tmp_path / "sweep" / "b", steps=range(10, 51, 10))
    make_run(tmp_path / "a")
    os.utime(tmp_path / "a" / "metrics.jsonl", (0, 0))
    head, a, b = _shown(capsys, tmp_path).splitlines()
    assert head.split() == ["run", "step", "loss", "validation", "of", "text", "tokens/s", "age", "state"]
    assert a.split()[:5] == [str(tmp_path / "a"), "100/100", "4.0000", "5.0000", "2,000"] and a.endswith("s  finished")
    assert b.split()[:5] == [str(tmp_path / "sweep" / "b"), "50/100", "4.5000", "5.6250", "2,000"]
    assert b.endswith("  stopped")
    # JSON has the numbers; a run that is named twice is shown once.
    found = json.loads(_shown(capsys, tmp_path, tmp_path / "a", "--json"))
    assert [(run["step"], run["total_steps"], run["state"]) for run in found] == [
        (100, 100, "finished"),
        (50, 100, "stopped"),
    ]
    assert found[1]["loss"] == 4.5 and found[1]["validation_loss"] == 5.625 and found[1]["age_seconds"] < 600


def test_the_state_is_that_of_lock_end_and_steps(tmp_path):
    run = make_run(tmp_path / "run", steps=range(10, 51, 10))
    with run_lock.held(run):
        assert run_state.look(run, "run").state == "running"
    assert run_state.look(run, "run").state == "stopped"
    with pytest.raises(ValueError), run_end.recorded(run):
        raise ValueError("The loss of step 57 is nan.")
    failed = run_state.look(run, "run")
    assert (failed.state, failed.reason) == ("failed", "The loss of step 57 is nan.")
    # The next start takes the reason away; a request to stop is no failure.
    with pytest.raises(SystemExit), run_end.recorded(run):
        assert run_end.read(run) is None
        raise SystemExit(75)
    assert run_state.look(run, "run").state == "stopped"
    # One that is stopped while a library has its thread leaves its lock, too.
    (run / run_lock.FILE_NAME).write_text('{"process": 1}')
    assert run_state.look(run, "run").state == "stopped"
    # A killed process leaves its lock, which nobody holds, and no record.
    (run / run_end.FILE_NAME).unlink()
    assert run_state.look(run, "run").state == "killed"


def test_a_look_takes_no_lock_from_a_run(tmp_path):
    """A run that another process holds is seen as running, from here, and stays what it is."""
    program = (
        "import sys; from pathlib import Path; from limba.reports import run_lock\n"
        "with run_lock.held(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "run")],
        cwd=house.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "held\n"
        found = run_state.look(tmp_path / "run", "run")
        assert (found.state, found.step, found.loss) == ("running", None, None)
        with pytest.raises(run_lock.RunLockedError), run_lock.held(tmp_path / "run"):
            pass
    finally:
        process.communicate("")
    assert process.returncode == 0


def test_the_last_lines_are_found_from_the_end(tmp_path, monkeypatch):
    """Also if blocks cut lines, and if the line of a validation is far from the end."""
    lines = [{"step": 5, "dataset": "training_eval/other", "loss": 9.0}]
    lines += [{"step": 5, "dataset": "training_eval/stories", "loss": 3.0}]
    lines += [{"step": step, "dataset": "train", "loss": float(step)} for step in range(5, 300)]
    write_lines(tmp_path / "metrics.jsonl", lines)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 300, "dataset": "tr')  # being written
    for size in (7, 64, 1 << 20):
        monkeypatch.setattr(run_curves, "_BLOCK", size)
        monkeypatch.setattr(run_curves, "_MOST_BLOCKS", 1 << 20)
        found = run_curves.newest_lines(tmp_path, "stories")
        assert found["train"]["loss"] == 299.0 and found["validation"]["loss"] == 3.0
        assert run_curves.newest_lines(tmp_path, "other")["validation"]["loss"] == 9.0


def test_lines_fit_a_terminal_and_steer_nothing(tmp_path):
    run = run_state.RunState("a\x1b[31m", "failed", "broken\nat step 7", 7, None, None, 2.0, None, None, 200.0)
    whole = runs_table.table([run]).splitlines()
    assert whole[1].split() == ["a", "[31m", "7", "2.0000", "3", "min", "failed:", "broken", "at", "step", "7"]
    cut = runs_table.table([run], columns=40).splitlines()
    assert [text_width.width(line) for line in cut] == [40, 40] and cut[1].endswith("…")
    assert [runs_table.number(x, ".4f") for x in (None, 4.5, -1e308)] == ["", "4.5000", "-1e+308"]
    assert [runs_table.age(x) for x in (5, 119, 120, 7300, 200000)] == ["5 s", "119 s", "2 min", "2 h", "2 d"]


def test_watch_looks_again_until_interrupted(tmp_path, capsys, monkeypatch):
    run, slept = make_run(tmp_path / "run", steps=range(10, 51, 10)), []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            raise KeyboardInterrupt
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 60, "dataset": "train", "loss": 1.5}\n')

    monkeypatch.setattr(runs_command.time, "sleep", sleep)
    shown = _shown(capsys, tmp_path, "--watch", "--every", 2).splitlines()
    assert slept == [2.0, 2.0] and len(shown) == 4 and "\x1b" not in "".join(shown)
    assert shown[1].split()[1:3] == ["50/100", "4.5000"] and shown[3].split()[1:3] == ["60/100", "1.5000"]


def test_a_plot_has_the_losses_of_each_run(tmp_path, capsys):
    pytest.importorskip("plotille")
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    shown = _shown(capsys, tmp_path, "--plot")
    for name in ("a", "b"):
        assert f"{tmp_path / name} (training_eval/stories)" in shown
    assert " steps)" in shown.replace("(steps)", " steps)") and "\x1b" not in shown
    (tmp_path / "c").mkdir()
    make_run(tmp_path / "c" / "run", steps=[1])
    assert "No run has two losses yet" in _shown(capsys, tmp_path / "c", "--plot")


@pytest.mark.parametrize("arguments", [["nowhere"], ["gs://bucket/runs"]])
def test_bad_folders_are_named(arguments):
    with pytest.raises((OSError, ValueError), match=r"nowhere is no folder|gs:/+bucket/runs is in a bucket: mount it"):
        runs_command.main(arguments)


@pytest.mark.parametrize("every", ["0", "x", "nan"])
def test_a_bad_period_is_refused(tmp_path, capsys, every):
    with pytest.raises(SystemExit):
        runs_command.main([str(tmp_path), "--watch", "--every", every])
    assert f"{every!r} is not a number of seconds" in capsys.readouterr().err


def test_no_runs_and_no_package_are_said(tmp_path, capsys, monkeypatch):
    assert _shown(capsys, tmp_path) == f"No runs under {tmp_path}: no folder has a metrics.jsonl.\n"
    monkeypatch.setitem(sys.modules, "plotille", None)
    with pytest.raises(ImportError, match=r"`limba runs --plot` draws with plotille.*pip install 'limba\[report\]'"):
        required_packages.plotille()
