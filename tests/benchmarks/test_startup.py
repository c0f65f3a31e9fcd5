"""Start-up: where time is counted, and what a command costs."""

from pathlib import Path

import pytest

from benchmarks import startup, startup_parts


def test_the_innermost_interval_counts():
    intervals = [
        (1.0, 8.0, "gin"),
        (2.0, 5.0, "imports"),
        (3.0, 4.0, "imports"),
        (4.5, 5.0, "trace"),
        (9.0, 9.5, "data"),
    ]
    pieces = startup_parts.innermost(0.0, 10.0, intervals)
    clocks = [(0.0, 0.0), (2.0, 1.0), (10.0, 17.0)]  # half of a CPU for two seconds, then two CPUs
    parts = startup_parts.by_part(pieces, clocks)
    assert parts == {
        "gin": [4.0, pytest.approx(0.5 + 6.0)],
        "imports": [2.5, pytest.approx(5.0)],
        "rest": [pytest.approx(2.5), pytest.approx(0.5 + 2.0 + 1.0)],
        "trace": [0.5, pytest.approx(1.0)],
        "data": [0.5, pytest.approx(1.0)],
    }
    assert sum(seconds for seconds, _ in parts.values()) == pytest.approx(10.0)


def test_a_process_is_measured_from_its_start_to_its_end(tmp_path):
    program = "import sys; x = bytearray(300 << 20); print(sys.stdin.read(), sys.argv[1:])"
    command = startup.Command(["{out}"], cold=True, text="typed")
    cost, text = startup.run(command, startup.Side(Path.cwd()), tmp_path, tmp_path / "cache", ["-c", program])
    assert text.startswith("typed [")
    assert cost.memory > 300
    assert 0 < cost.cpu_seconds <= 2 * cost.seconds
    with pytest.raises(RuntimeError, match="ended with 7"):
        startup.run(command, startup.Side(Path.cwd()), tmp_path, tmp_path / "cache", ["-c", "raise SystemExit(7)"])


def test_the_ratios_are_the_other_sides_over_this_ones():
    here = [startup.Cost(1.0, 2.0, 100.0), startup.Cost(2.0, 2.0, 100.0), startup.Cost(4.0, 2.0, 100.0)]
    other = [startup.Cost(3.0, 4.0, 50.0), startup.Cost(4.0, 8.0, 50.0), startup.Cost(20.0, 2.0, 50.0)]
    line = startup.report("infer", [here, other])
    assert line["here"] == {"seconds": 2.0, "cpu_seconds": 2.0, "memory": 100.0}
    assert line["seconds_ratio"] == [3.0, 2.0, 5.0]
    assert line["cpu_seconds_ratio"] == [2.0, 1.0, 4.0]
    assert line["memory_ratio"] == [0.5, 0.5, 0.5]


def test_the_commands_are_limbas():
    from limba.cli import COMMANDS

    assert {command.arguments[0] for command in startup.commands(Path("work")).values()} <= COMMANDS.keys()


def test_t5x_gets_the_flags_of_train_and_sees_both_checkouts(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/more")
    side = startup.Side(Path("/t5x"), "t5x-python")
    command = startup.t5x_training(Path("/work"))
    line = side.program(command.arguments)
    assert line[:3] == ["t5x-python", "-m", "t5x.train"]
    assert line[3:5] == [f"--gin_search_paths={startup.HERE},/t5x", "--gin_file=benchmarks/startup_t5x.gin"]
    assert side.python_path == f"{startup.HERE}:/t5x:/more"
    assert startup.Side(Path("/limba")).program(["train"])[1:] == ["-m", "limba", "train"]
