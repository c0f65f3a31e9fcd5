"""Real workers on loopback: they train as one process does, are named when they die or differ, and stop together.

Every launch serves several tests, because starting workers is what takes the time.
"""

import dataclasses
import functools
import json
import os
import re
import socket
import time
from pathlib import Path

import gin
import jax
import numpy as np
import pytest
from flax import traverse_util

from limba import train
from limba.checkpoints import checkpointing
from limba.inference import tasks_door
from limba.partitioning import meshes
from limba.reports import writers
from limba.workers import heartbeats
from limba.workers.preemption import PREEMPTED_EXIT_CODE
from tests import compilation
from tests.limba import small
from tests.limba.workers import worker
from tests.limba.workers.test_distributed import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
GIN_FILE = "tests/limba/workers/many.gin"
STEPS = 6


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a worker ended: exit code, its output, and when."""

    code: int
    output: str
    at: float


@pytest.fixture(scope="module")
def launch(forks):
    """`_launch` in forks: the imports are most of what a worker takes."""
    return functools.partial(_launch, forks)


def _launch(forks, model_dir, count, flags=(), devices=1, env=None, of_worker_1=None, timeout=240):
    """Runs `count` workers to their end; environment and flags (`"flags"`) of worker 1 may differ."""
    port = free_port()
    started = []
    for index in range(count):
        own = of_worker_1 if index == 1 and of_worker_1 else {}
        variables = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {compilation.FAST}",
            "LIMBA_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "LIMBA_PROCESS_COUNT": str(count),
            "LIMBA_PROCESS_INDEX": str(index),
            **(env or {}),
            **{name: value for name, value in own.items() if name != "flags"},
        }
        command = ["tests.limba.workers.worker", f"--gin_file={GIN_FILE}", "--module=tests"]
        command += [f"--gin.MODEL_DIR='{model_dir}'", *flags, *own.get("flags", ())]
        log = Path(f"{model_dir}-{index}-{port}.log")
        with log.open("wb") as file:
            started.append((forks.start(command, variables, file, file), log))
    deadline = time.monotonic() + timeout
    ended: dict[int, Ended] = {}
    try:
        while len(ended) < count and time.monotonic() < deadline:
            for index, (process, log) in enumerate(started):
                if index not in ended and process.poll() is not None:
                    ended[index] = Ended(process.returncode, log.read_text(errors="replace"), time.monotonic())
            time.sleep(0.05)
        assert len(ended) == count, [log.read_text(errors="replace")[-2000:] for _, log in started]
    finally:
        for process, _ in started:
            process.kill()
            process.wait()
    return [ended[index] for index in range(count)]


def _losses(model_dir, dataset="train"):
    return [(line["step"], line["loss"]) for line in writers.read_metrics(model_dir) if line["dataset"] == dataset]


def _assert_same_losses(model_dir, expected_dir):
    for dataset in ("train", "training_eval/counter"):
        found, expected = _losses(model_dir, dataset), _losses(expected_dir, dataset)
        assert [step for step, _ in found] == [step for step, _ in expected]
        np.testing.assert_allclose([x for _, x in found], [x for _, x in expected], rtol=1e-5)
    unigrams = [
        [line["unigram_nats_per_target_token"] for line in writers.read_metrics(folder, "training_eval/")]
        for folder in (model_dir, expected_dir)
    ]
    np.testing.assert_allclose(*unigrams, rtol=1e-12)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The run of one process, this one."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks_door, "get_dataset", worker.open_rows)
        patch.chdir(ROOT)
        gin.clear_config()
        train.main([f"--gin_file={GIN_FILE}", "--module=tests", f"--gin.MODEL_DIR='{folder}'"])
        gin.clear_config()
    return folder


# ---------------------------------------------------- four workers --------------------------------------------------


@pytest.fixture(scope="module")
def four(tmp_path_factory, launch):
    """Four workers of one device: the model's axis is over two of them, and two and two read the same rows."""
    folder = tmp_path_factory.mktemp("four")
    flags = [
        "--gin.partitioning.PjitPartitioner.num_partitions=2",
        "--gin.partitioning.standard_logical_axis_rules.parameter_partitioning_dims=2",
    ]
    ended = launch(folder / "run", 4, flags, env={"DUMP": str(folder)})
    assert [worker.code for worker in ended] == [0] * 4, ended[0].output[-2000:]
    assert "mesh {'data': 2, 'model': 2}" in ended[3].output
    return folder


def test_hosts_that_share_rows_train_as_one_process(four, alone):
    _assert_same_losses(four / "run", alone)


def test_one_of_the_hosts_that_share_rows_keeps_the_place_in_the_data(four):
    assert checkpointing.load_files(four / "run" / f"checkpoint_{STEPS}", "dataset") == {"reader-0": b"6"}


@pytest.mark.parametrize(("devices", "num_partitions", "fsdp"), [(1, 1, False), (2, 2, False), (8, 4, True)])
def test_a_checkpoint_of_four_workers_on_another_mesh_bit_for_bit(four, devices, num_partitions, fsdp):
    model = worker.tiny_model()
    rules = meshes.fsdp_logical_axis_rules() if fsdp else None
    partitioner = meshes.PjitPartitioner(num_partitions, logical_axis_rules=rules, devices=jax.devices()[:devices])
    shapes = small.make_trainer(model, partitioner).sharded_state_shapes()
    state = checkpointing.load_state(four / "run" / f"checkpoint_{STEPS}", shapes)
    restored = traverse_util.flatten_dict(state.state_dict(), sep="/")
    with np.load(four / f"state_{STEPS}.npz") as saved:
        assert set(saved.files) == set(restored)
        for name, array in restored.items():
            np.testing.assert_array_equal(np.asarray(array), saved[name], err_msg=name, strict=True)
    sharded = [array for array in restored.values() if not array.sharding.is_fully_replicated]
    assert bool(sharded) == (num_partitions > 1 or fsdp)


# --------------------------------------------------- a worker that dies ---------------------------------------------


@pytest.fixture(scope="module")
def killed(tmp_path_factory, launch):
    """Two workers of two devices; worker 1 is killed between steps 5 and 6, and both are started again."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    first = launch(folder, 2, devices=2, env={"BREAK_AT": "kill:1:5"})
    return folder, first, launch(folder, 2, devices=2)


def test_the_others_end_within_a_minute_with_its_name(killed):
    _, (survivor, dead), _ = killed
    assert dead.code == -9
    assert survivor.code == heartbeats.LOST_WORKER_EXIT_CODE
    assert survivor.at - dead.at < 60
    name = re.escape(f"worker 1 ({socket.gethostname()})")
    assert re.search(rf"error: {name}, last at step \d, gave no sign of life for 25 s: it was killed", survivor.output)


def test_started_again_they_have_the_losses_of_the_uninterrupted_run(killed, alone):
    folder, _, again = killed
    assert [worker.code for worker in again] == [0, 0], again[1].output[-2000:]
    assert all(re.search(r"Resuming from step [24] in", worker.output) for worker in again)
    _assert_same_losses(folder, alone)


# ------------------------------------------------------- stopping ---------------------------------------------------


def test_a_stop_of_one_worker_stops_all_after_the_same_step(tmp_path, launch):
    folder = tmp_path / "run"
    flags = [f"--gin.{name}" for name in ("TRAIN_STEPS=1000000", "EVAL_PERIOD=1000000")]
    flags.append("--gin.SaveCheckpointConfig.period=1000000")
    ended = launch(folder, 2, flags, env={"BREAK_AT": "term:1:4"})
    assert [worker.code for worker in ended] == [PREEMPTED_EXIT_CODE] * 2, ended[1].output[-2000:]
    (step,) = checkpointing.checkpoint_steps(folder)
    assert step > 4
    for one in ended:
        assert f"worker 1 ({socket.gethostname()}): asked to stop (SIGTERM)" in one.output
        assert f"Stopped on request at step {step}; saved as {folder}/checkpoint_{step}" in one.output


@pytest.mark.exhaustive
def test_a_stop_while_one_worker_waits_for_data(tmp_path, launch):
    """Nothing can be saved: the others are in a step that needs its batch. But nobody waits until it is killed."""
    folder = tmp_path / "run"
    ended = launch(folder, 2, env={"BREAK_AT": "stall:1:3"})
    assert [worker.code for worker in ended] == [PREEMPTED_EXIT_CODE] * 2, ended[1].output[-2000:]
    assert checkpointing.checkpoint_steps(folder) == [2]
    reason = "it was asked to stop while it waited for a batch, which did not come; steps after the newest checkpoint"
    assert f"This worker ends: {reason}" in ended[1].output
    assert f"error: worker 1 ({socket.gethostname()}) ended: {reason}" in ended[0].output


def test_what_goes_wrong_on_one_worker_ends_both_and_spoils_no_checkpoint(tmp_path, launch):
    folder = tmp_path / "run"
    ended = launch(folder, 2, env={"BREAK_AT": "error:1:3"})
    assert [worker.code for worker in ended] == [1, 1], ended[0].output[-2000:]
    assert checkpointing.checkpoint_steps(folder) == [2]
    assert all("Shard 7 cannot be read" in one.output for one in ended)


SPIKES = ["--gin_file=tests/limba/workers/spikes.gin"]


def test_two_workers_go_back_together_from_a_loss_that_is_not_a_number(tmp_path, launch):
    """Batch 3, of step 4, is poison on one of them: both pass over it and the one before, as one process does."""
    ended = launch(tmp_path / "two", 2, SPIKES, env={"BREAK_AT": "nan:1:3"})
    assert [worker.code for worker in ended] == [0, 0], ended[0].output[-2000:]
    (one,) = launch(tmp_path / "one", 1, SPIKES, env={"BREAK_AT": "nan:0:3"})
    assert one.code == 0, one.output[-2000:]
    for folder in ("two", "one"):
        (record,) = map(json.loads, (tmp_path / folder / "spikes.jsonl").read_text().splitlines())
        assert (record["step"], record["back_to"], record["passed"], record["documents"]) == (4, 2, 2, [])
        assert checkpointing.load_dataset_state(tmp_path / folder / "checkpoint_6") == {"reader-0": b"8"}
    _assert_same_losses(tmp_path / "two", tmp_path / "one")


# ----------------------------------------------------- the handshake ------------------------------------------------


@pytest.fixture(scope="module")
def different_code(tmp_path_factory, launch):
    """Two workers of which one has another commit, version of optax, and number of steps."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "optax-0.0.1.dist-info").mkdir()
    (folder / "optax-0.0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: optax\nVersion: 0.0.1\n")
    git = folder / "git"
    git.write_text(f'#!/bin/sh\ncase "$*" in *HEAD*) echo {"c" * 40};; *toplevel*) echo {ROOT};; esac\n')
    git.chmod(0o755)
    other = {
        "PYTHONPATH": f"{folder}:{ROOT}",
        "PATH": f"{folder}:{os.environ['PATH']}",
        "flags": ["--gin.TRAIN_STEPS=7"],
    }
    return launch(folder / "run", 2, of_worker_1=other, timeout=120)


@pytest.fixture(scope="module")
def different_data(tmp_path_factory, launch):
    """Two workers of which one has another revision of the corpus, and other ids in its vocabulary."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("a.model", "b.model"):
        (folder / name).write_text(name)
    ours, theirs = ({"VOCABULARY": str(folder / name)} for name in ("a.model", "b.model"))
    return launch(folder / "run", 2, env=ours, of_worker_1=theirs | {"REVISION": "r2"}, timeout=120)


@pytest.mark.parametrize(
    "difference",
    [
        rf"commit of limba: {'c' * 40}, on worker 0 \(.*\) \w+",
        r"version of optax: 0\.0\.1, on worker 0 \(.*\) \d+\.\d+",
        r"gin configuration: TRAIN_STEPS = 7, on worker 0 \(.*\) TRAIN_STEPS = 6",
    ],
)
def test_a_worker_with_other_code_or_configuration(different_code, difference):
    _assert_named(different_code, difference)


@pytest.mark.parametrize(
    "difference",
    [
        r"revision of counter: r2, on worker 0 \(.*\) r1",
        r"output vocabulary: FixedVocabulary, 256 ids, SHA-256 \w{16}, on worker 0 \(.*\) FixedVocabulary",
    ],
)
def test_a_worker_with_other_data(different_data, difference):
    _assert_named(different_data, difference)


def _assert_named(ended, difference):
    """On every worker, before anything is compiled, and nobody is left waiting."""
    for one in ended:
        assert one.code == 1
        assert "error: The workers of this run differ in their" in one.output
        assert re.search(rf"worker 1 \({re.escape(socket.gethostname())}\): {difference}", one.output), one.output[
            -3000:
        ]
        assert "compiled" not in one.output
    assert abs(ended[0].at - ended[1].at) < 30


def test_a_worker_that_does_not_come_is_named(tmp_path, launch):
    (ended,) = launch(tmp_path / "run", 1, ["--initialization_timeout=2"], env={"LIMBA_PROCESS_COUNT": "3"}, timeout=60)
    assert ended.code == 1
    assert "error: Workers 1, 2 of 3 did not start within 2 s; 0 (" in ended.output
