"""A stream is the same however often its processes are killed, and however many there are.

Of tasks of ours without TensorFlow, whose readers are threads or processes, and of SeqIO's. These take long to start:
the suite kills few of them, `pytest --exhaustive` each 20 times.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SHARDS = {"a": (9, 2, 5, 14, 4, 7, 6), "b": (8, 3), "c": (13, 1, 6)}
CONFIG = {"batch_size": 4, "seed": 5}


@pytest.fixture
def corpus(tmp_path):
    directory = tmp_path / "corpus"
    directory.mkdir()
    for name, sizes in SHARDS.items():
        for shard, rows in enumerate(sizes):
            texts = [f"{name} {shard} {row}" + " more words" * (name != "c") * (1 + row % 9) for row in range(rows)]
            lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
            (directory / f"{name}-{shard}.jsonl").write_text(lines)
    return directory


@pytest.fixture(params=["ours", "processes", "seqio"])
def engine(request):
    return request.param


@pytest.fixture
def is_exhaustive(request):
    return request.config.getoption("--exhaustive")


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Of each engine a process of `stream_process.py`, which forks others; importing takes longest."""
    stderr = (tmp_path_factory.mktemp("servers") / "stderr").open("w")
    started = {}

    def find(name):
        if name not in started:
            started[name] = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("stream_process.py"), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "JAX_PLATFORMS": "cpu"},
            )
        return started[name]

    find.stderr = Path(stderr.name)
    yield find
    for server in started.values():
        server.stdin.close()
        server.wait(60)


@pytest.fixture
def start(servers, engine):
    """Starts a process of `stream_process.py`; all have ended after the test."""
    server = servers("seqio" if engine == "seqio" else "ours")
    started = []

    def start_process(**arguments):
        if engine == "processes":
            arguments["config"] = {**arguments["config"], "num_workers": 2}
        server.stdin.write(json.dumps(arguments) + "\n")
        server.stdin.flush()
        started.append(int(server.stdout.readline()))
        return started[-1]

    start_process.stderr = servers.stderr
    yield start_process
    for process in started:
        kill(process)


def kill(process):
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    wait_for(lambda: not is_alive(process), 20)
    return True


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def log_of(directory, process):
    """A checksum per row of each step that a process has read; a line that was not finished is left out."""
    files = list(directory.glob(f"log-*-{process}"))
    lines = files[0].read_text().splitlines(keepends=True) if files else []
    return dict(json.loads(line) for line in lines if line.endswith("\n"))


def read_uninterrupted(start, directory, steps, **arguments):
    directory.mkdir()
    process = start(directory=str(directory), index=0, count=1, steps=steps, seconds_per_step=0, **arguments)
    wait_for(lambda: not is_alive(process), 300)
    log = log_of(directory, process)
    assert len(log) == steps, start.stderr.read_text()[-2000:]
    return log


def epochs(directory):
    """The epoch of each task in the last position of each reader."""
    states = [json.loads(p.read_text()) for p in sorted(directory.glob("step-*"))[-1].glob("*/reader-*.json")]
    for state in states:
        for task, place in state["position"].items():
            # A document is an example of this task, and a group of documents is longer than an epoch of this corpus.
            examples = (place["example"] + place["taken"]) * (task == "killed_c")
            yield place["epoch"] + examples // sum(SHARDS["c"])


# The other test kills readers in processes, and SeqIO's.
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ours", pytest.param("seqio", marks=pytest.mark.exhaustive)], indirect=True)
def test_killed_again_and_again(start, engine, is_exhaustive, corpus, tmp_path):
    """Mixed, shuffled with a buffer larger than a shard, over more than two epochs of all three sources.

    Neither packed nor read by several, which the other test does: it would double what each life takes to start.
    """
    steps, kills = 260, 20 if is_exhaustive else 4
    config = {**CONFIG, "pack": False, "num_readers": 1}
    expected = read_uninterrupted(start, tmp_path / "whole", steps, corpus=str(corpus), config=config)
    assert min(epochs(tmp_path / "whole")) >= 2
    moments = random.Random(0)
    directory = tmp_path / "killed"
    directory.mkdir()
    arguments = {"directory": str(directory), "corpus": str(corpus), "config": config, "index": 0, "count": 1}
    seen = {}
    for life in range(kills):
        process = start(steps=steps, seconds_per_step=0.01, **arguments)
        if life % 5:  # while it reads and saves; every fifth time while it starts and restores
            reached = moments.randint(1, 200 // kills)
            wait_for(lambda: not is_alive(process) or len(log_of(directory, process)) >= reached, 300)  # noqa: B023
            time.sleep(moments.uniform(0, 0.02))
        else:
            time.sleep(moments.uniform(0, 0.25))
        assert kill(process), start.stderr.read_text()[-2000:]
        log = log_of(directory, process)
        assert log == {step: expected[step] for step in log}
        seen |= log
    assert 50 < len(seen) < steps
    process = start(steps=steps, seconds_per_step=0, **arguments)
    wait_for(lambda: not is_alive(process), 300)
    assert seen | log_of(directory, process) == expected


@pytest.mark.sample(1)
@pytest.mark.slow
def test_the_same_on_4_2_1_and_4_processes(start, engine, is_exhaustive, corpus, tmp_path):
    """Every process is killed before their number changes. Packed. A sample has 1 and 2 processes."""
    config = {**CONFIG, "pack": True, "num_readers": 4}
    steps = 400  # None comes so far before the slowest has begun.
    expected = read_uninterrupted(start, tmp_path / "whole", steps, corpus=str(corpus), config=config)
    moments = random.Random(1)
    directory = tmp_path / "hosts"
    directory.mkdir()
    arguments = {"directory": str(directory), "corpus": str(corpus), "config": config, "steps": steps}
    seen = set()
    phases = ((4, 20), (2, 50), (1, 80), (4, 110)) if engine == "ours" or is_exhaustive else ((1, 20), (2, 50))
    for count, until in phases:
        processes = [start(index=i, count=count, seconds_per_step=0.02, **arguments) for i in range(count)]
        wait_for(lambda: all(max(log_of(directory, p), default=0) >= until for p in processes), 300)  # noqa: B023
        time.sleep(moments.uniform(0, 0.1))
        killed = [kill(process) for process in processes]
        assert all(killed)
        logs = [log_of(directory, process) for process in processes]
        for step in set.intersection(*map(set, logs)):
            assert list(itertools.chain.from_iterable(log[step] for log in logs)) == expected[step]
            seen.add(step)
    assert seen >= set(range(phases[-1][1]))
