"""Trainings that end before their last step: by SIGTERM, a kill, or a loss that is not a number; and begin again."""

import ctypes
import functools
import json
import logging
import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.addons.pages import run_state
from limba.checkpoints import checkpointing
from limba.data.contract import DatasetConfig, ReadingStoppedError
from limba.reports import goodput, run_end, writers
from limba.train import NanLossError
from limba.training import rescue, trainer
from limba.workers import heartbeats
from limba.workers.preemption import PREEMPTED_EXIT_CODE
from tests.limba import small

LENGTHS = {"inputs": 16, "targets": 8}


class _StopAt(small.Stream):
    """Sends this process SIGTERM when a batch is asked for, as a cluster does."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def __next__(self):
        if self.next == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().__next__()


def test_sigterm_saves_and_exits_with_its_own_code(tmp_path, whole):
    with pytest.raises(SystemExit) as error:
        small.train(tmp_path / "run", 6, stream=_StopAt(2))
    assert error.value.code == PREEMPTED_EXIT_CODE
    assert checkpointing.checkpoint_steps(tmp_path / "run") == [2, 3]
    assert run_end.read(tmp_path / "run") == {"kind": "stopped", "reason": "on request"}
    small.train(tmp_path / "run", 6)
    assert run_end.read(tmp_path / "run") is None
    assert small.train_losses(tmp_path / "run") == whole[0]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def _send_sigterm():
    """Once the loop hears it; the first batch is asked for before."""
    while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        time.sleep(0.05)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)


class _StallsAt(small.Stream):
    """Waits when a batch is asked for; SIGTERM comes a little later."""

    def __init__(self, at):
        super().__init__()
        self.at, self.stopped = at, threading.Event()

    def __next__(self):
        if self.next < self.at:
            return super().__next__()
        threading.Thread(target=_send_sigterm).start()
        return self.wait()

    def wait(self):
        assert self.stopped.wait(60)
        raise ReadingStoppedError

    def stop_waiting(self):
        self.stopped.set()


@pytest.mark.parametrize("at", [0, 3])
def test_sigterm_while_a_batch_is_awaited_saves_the_last_step(tmp_path, at, caplog, whole):
    with pytest.raises(SystemExit) as error:
        small.train(tmp_path / "run", 6, stream=_StallsAt(at))
    assert error.value.code == PREEMPTED_EXIT_CODE
    assert checkpointing.checkpoint_steps(tmp_path / "run") == ([2, 3] if at else [])
    stopped = f"Stopped on request at step 3; saved as {tmp_path}/run/checkpoint_3; the same command resumes the run."
    assert not at or stopped in caplog.messages
    small.train(tmp_path / "run", 6)
    assert small.train_losses(tmp_path / "run") == whole[0]


class _StallsInC(_StallsAt):
    """Waits in a library that hears neither signals nor `stop_waiting`."""

    def wait(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            ctypes.CDLL(None).usleep(4_000_000)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        raise KeyboardInterrupt("the process would have ended before")


def test_sigterm_while_a_library_waits_saves_the_last_step(tmp_path, monkeypatch, caplog):
    ended = []
    monkeypatch.setattr(rescue, "StopRequest", functools.partial(rescue.StopRequest, grace_seconds=0.3))
    monkeypatch.setattr(
        heartbeats, "leave_at_once", lambda code: ended.append((code, checkpointing.checkpoint_steps(tmp_path)))
    )
    with pytest.raises(KeyboardInterrupt, match="would have ended before"):
        small.train(tmp_path, 6, stream=_StallsInC(3))
    assert ended == [(PREEMPTED_EXIT_CODE, [2, 3])]
    waited = "Stopped on request at step 3, while it waited (input); the same command resumes the run."
    assert waited in caplog.messages


class _BadTokens(small.Stream):
    def __next__(self):
        step = self.next
        made = super().__next__()
        if step == 4:
            # A weight that is not a number makes the loss NaN.
            made["decoder_loss_weights"] = made["decoder_loss_weights"].astype(np.float32) * np.nan
        else:
            made["decoder_loss_weights"] = made["decoder_loss_weights"].astype(np.float32)
        return made


def test_nan_stops_with_the_step_and_the_last_good_checkpoint(tmp_path):
    with pytest.raises(NanLossError) as error:
        small.train(tmp_path, 6, stream=_BadTokens())
    assert "step 5" in str(error.value) and "checkpoint_4" in str(error.value)
    assert run_end.read(tmp_path) == {"kind": "failed", "reason": str(error.value)}
    assert checkpointing.checkpoint_steps(tmp_path) == [2, 4]


def test_an_update_that_spoils_the_parameters_is_not_saved(tmp_path):
    """The loss of a step is from before its update: it is still finite when the parameters are not."""

    def infinite_rate(**arguments):
        return trainer.Trainer(learning_rate_fn=lambda step: jnp.where(step == 3, jnp.inf, 0.01), **arguments)

    with pytest.raises(NanLossError, match=r"update of step 4.*checkpoint_2"):
        small.train(tmp_path, 6, trainer_cls=infinite_rate)
    assert checkpointing.checkpoint_steps(tmp_path) == [2]


class _Evaluation(list):
    """Evaluation batches during which the process is asked to stop, or killed, the `at`-th time."""

    def __init__(self, at, action):
        super().__init__([small.batch(100)])
        self.at, self.action, self.times = at, action, 0

    def __iter__(self):
        self.times += 1
        if self.times == self.at:
            self.action()
        return super().__iter__()


def test_sigterm_does_not_wait_for_the_end_of_an_evaluation(tmp_path):
    read = []

    class Long:
        def __iter__(self):
            for number in range(1000):
                if len(read) == 3:
                    os.kill(os.getpid(), signal.SIGTERM)
                read.append(number)
                yield small.batch(100 + number)

    with pytest.raises(SystemExit) as error:
        small.train(
            tmp_path, 6, train_eval_get_dataset_fn=lambda *_: {"counter": Long()}, run_eval_before_training=False
        )
    assert error.value.code == PREEMPTED_EXIT_CODE
    assert checkpointing.checkpoint_steps(tmp_path) == [2, 3] and len(read) == 4
    # The resumed run makes the evaluation that is missing.
    small.train(tmp_path, 4)
    assert [x["step"] for x in writers.read_metrics(tmp_path, "training_eval/")] == [3, 4]


def test_a_run_that_is_killed_before_its_first_checkpoint_begins_again_as_it_began(tmp_path, caplog):
    """With the seeds that it drew and the initial values that it made; and each start counts."""
    caplog.set_level(logging.INFO)
    made = []

    class HalfOfAll:
        def __repr__(self):
            return "HalfOfAll()"

        def __call__(self, params, model, dataset):
            made.append(1)
            return jax.tree.map(lambda x: x / 2, params)

    def begin(model_dir, kill_at):
        def kill():
            raise RuntimeError("killed")

        return small.train(
            tmp_path / model_dir,
            4,
            random_seed=None,
            train_dataset_cfg=DatasetConfig("counter", LENGTHS, "train", 8, seed=None),
            checkpoint_cfg=checkpointing.CheckpointConfig(save=checkpointing.SaveCheckpointConfig(period=4)),
            train_eval_get_dataset_fn=lambda *_: {"counter": _Evaluation(kill_at, kill)},
            initial_values_fn=HalfOfAll(),
        )

    for kill_at in (1, 2):  # before the first step, and after step 3
        with pytest.raises(RuntimeError, match="killed"):
            begin("run", kill_at)
    seeds = json.loads((tmp_path / "run" / "run_start.json").read_text())["seeds"]
    assert checkpointing.checkpoint_steps(tmp_path / "run") == [] and made == [1]
    killed = small.train_losses(tmp_path / "run")
    caplog.clear()
    begin("run", 0)
    assert made == [1] and not (tmp_path / "run" / "start_values.npz").exists()
    assert f"ended before its first checkpoint: the run begins again, with the seeds {seeds}" in caplog.text
    assert "The initial values are those that an earlier start has made" in caplog.text
    assert checkpointing.load_run_info(tmp_path / "run")["seeds"] == seeds
    assert len(killed) == 3 and small.train_losses(tmp_path / "run")[:3] == killed
    assert "3 starts:" in caplog.text and len(goodput.read_attempts(tmp_path / "run")) == 3
    # Other facts, other values.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "start_values.npz").write_bytes(b"torn")
    begin("other", 0)
    assert made == [1, 1] and "start_values.npz is damaged" in caplog.text
    other = checkpointing.load_run_info(tmp_path / "other")["seeds"]
    assert other != seeds and small.train_losses(tmp_path / "other") != small.train_losses(tmp_path / "run")


def test_sigterm_before_the_first_step_is_a_request_to_stop(tmp_path):
    """While initial values are made, as while a library has the main thread: `limba runs` calls the run stopped."""

    def asks(params, **_):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    with pytest.raises(SystemExit) as error:
        small.train(tmp_path / "run", 6, initial_values_fn=asks)
    assert error.value.code == PREEMPTED_EXIT_CODE
    assert run_end.read(tmp_path / "run") == {"kind": "stopped", "reason": "on request"}
    assert run_state.look(tmp_path / "run", "run").state == "stopped"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_evaluation_that_a_kill_prevented_is_made_up(tmp_path):
    class Killed(Exception):
        pass

    def kill():
        raise Killed

    with pytest.raises(Killed):
        small.train(tmp_path, 6, train_eval_get_dataset_fn=lambda *_: {"counter": _Evaluation(3, kill)})
    small.train(tmp_path, 6)
    evaluated = [x["step"] for x in writers.read_metrics(tmp_path, "training_eval/")]
    assert evaluated == [0, 3, 6]


def test_a_run_that_died_before_its_first_checkpoint_leaves_no_lines(tmp_path):
    with pytest.raises(NanLossError):
        small.train(tmp_path, 6, stream=_BadTokens(first=4))
    assert checkpointing.checkpoint_steps(tmp_path) == []
    small.train(tmp_path, 2)
    steps = [(x["dataset"], x["step"]) for x in writers.read_metrics(tmp_path)]
    assert steps == [("training_eval/counter", 0), ("train", 1), ("train", 2), ("training_eval/counter", 2)]


def test_drawn_seeds_survive_a_damaged_checkpoint(tmp_path):
    options = {"random_seed": None, "train_dataset_cfg": DatasetConfig("counter", LENGTHS, "train", 8)}
    small.train(tmp_path, 4, **options)
    seeds = checkpointing.load_run_info(tmp_path)["seeds"]
    for file in (tmp_path / "checkpoint_4").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    small.train(tmp_path, 6, **options)
    assert checkpointing.load_run_info(tmp_path)["seeds"] == seeds
