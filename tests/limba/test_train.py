import contextlib
import ctypes
import errno
import functools
import json
import logging
import os
import re
import resource
import signal
import sys
import threading
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.checkpoint_files import classic_format, saved_tensors
from limba.checkpoints import checkpointing
from limba.commands.run_pages import run_state
from limba.data.contract import ChangedVocabularyError, DatasetConfig, ReadingStoppedError
from limba.files import disk
from limba.files.local_paths import local_path
from limba.optimizers.schedules import create_learning_rate_scheduler
from limba.reports import goodput, run_end, run_lock, wandb_writer, writers
from limba.train import NanLossError, train
from limba.training import rescue, trainer
from limba.training.from_counts.start_from_counts import StartFromCounts
from limba.workers import code_versions, heartbeats
from limba.workers.preemption import PREEMPTED_EXIT_CODE
from tests.limba import small

LENGTHS = {"inputs": 16, "targets": 8}


def _train(model_dir, total_steps=6, stream=None, model=None, partitioner=None, **options):
    """`train()` on the counter stream of `small`, evaluating on two fixed batches."""
    arguments = {
        "model": model or small.tiny_model(),
        "train_dataset_cfg": DatasetConfig("counter", LENGTHS, "train", 8, seed=0),
        "train_eval_dataset_cfg": DatasetConfig("counter", LENGTHS, "validation", 8, seed=0),
        "checkpoint_cfg": checkpointing.CheckpointConfig(save=checkpointing.SaveCheckpointConfig(period=2)),
        "partitioner": partitioner or small.partitioner(),
        "trainer_cls": small.SharedTrainer,
        "model_dir": str(model_dir),
        "total_steps": total_steps,
        "eval_period": 3,
        "stats_period": 1,
        "random_seed": 7,
        "get_dataset_fn": lambda *_: stream or small.Stream(),
        "train_eval_get_dataset_fn": lambda *_: {"counter": [small.batch(100), small.batch(101)]},
        "verify_matching_vocabs_fn": None,
        "run_eval_before_training": True,
    }
    return train(**(arguments | options))


def _make_trainer(**arguments):
    return trainer.Trainer(learning_rate_fn=create_learning_rate_scheduler("constant", 0.01), **arguments)


def _train_losses(model_dir):
    return [(line["step"], line["loss"]) for line in writers.read_metrics(model_dir) if line["dataset"] == "train"]


def test_a_run_writes_what_it_promises(tmp_path, capsys, caplog):
    caplog.set_level(logging.INFO)
    step, state = _train(tmp_path, log_every=4)
    assert step == int(state.step) == 6
    assert checkpointing.checkpoint_steps(tmp_path) == [2, 4, 6]
    lines = writers.read_metrics(tmp_path)
    assert [line["step"] for line in lines if line["dataset"] == "training_eval/counter"] == [0, 3, 6]
    train_line = [line for line in lines if line["dataset"] == "train"][-1]
    for tag in ("loss", "accuracy", "learning_rate", "timing/steps_per_second", "non_padding_fraction/overall"):
        assert np.isfinite(train_line[tag])
    assert list((tmp_path / "train").glob("events.out.tfevents.*"))
    assert list((tmp_path / "training_eval" / "counter").glob("events.out.tfevents.*"))
    said = capsys.readouterr()
    assert "unigram" in said.out
    compiling = caplog.messages.index("compiling the training step")
    assert caplog.messages[compiling + 1].startswith("compiled and made the first step in ")
    assert [x for x in said.err if x in "\r%|"] == []
    steps = [x for x in caplog.messages if x.startswith("step ")]
    assert [x.split()[1] for x in steps] == ["0:", "1/6:", "3:", "4/6:", "6/6:", "6:"]
    assert steps[-2].startswith(f"step 6/6: loss {train_line['loss']:.3f}, learning rate 0.01, ")
    info = checkpointing.load_run_info(tmp_path)
    assert info["parameters"] == sum(x.size for x in jax.tree.leaves(state.params))
    environment = info["environment"]
    assert environment["packages"]["jax"] == jax.__version__ and environment["processes"] == 1
    assert environment["devices"] == {"cpu": jax.device_count()}
    assert info["network"]["emb_dim"] == 16 and info["seeds"] == {"random": 7, "dataset": 0}


def test_initial_values_are_changed_once_and_before_the_first_evaluation(tmp_path):
    changed = []

    def no_weights(params, model, dataset):
        assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(params))
        changed.append((model, dataset.split))
        return jax.tree.map(np.zeros_like, params)

    for total_steps in (2, 4):
        step, _ = _train(tmp_path, total_steps, initial_values_fn=no_weights)
    assert step == 4 and changed == [(small.tiny_model(), "train")]
    at_0 = next(line for line in writers.read_metrics(tmp_path, "training_eval/") if line["step"] == 0)
    assert at_0["nats_per_target_token"] == pytest.approx(np.log(small.VOCAB_SIZE))
    wrong_shapes = lambda params, **_: jax.tree.map(lambda x: x[..., :1], params)  # noqa: E731
    with pytest.raises(ValueError, match=r"A changed parameter has the shape \(1,\); the network's has \(16,\)"):
        _train(tmp_path / "other", 2, initial_values_fn=wrong_shapes)


def test_a_start_from_counts_refuses_a_network_before_the_data_are_opened(tmp_path):
    opened = []
    tied = small.model(logits_via_embedding=True, **small.TINY)
    with pytest.raises(ValueError, match=r"A start from counts .*: logits_via_embedding is True"):
        _train(tmp_path, model=tied, initial_values_fn=StartFromCounts(), get_dataset_fn=lambda *_: opened.append(1))
    with pytest.raises(ValueError, match=r"train\.get_dataset_fn is a function of your own: leave"):
        _train(tmp_path, initial_values_fn=StartFromCounts(), get_dataset_fn=lambda *_: opened.append(1))
    with pytest.raises(ValueError, match="needs a method `changed` of train_state_initializer_cls"):
        _train(tmp_path, initial_values_fn=StartFromCounts(), train_state_initializer_cls=lambda **_: object())
    assert not opened and not list(tmp_path.iterdir())


def test_a_writer_that_cannot_work_is_found_before_the_data_are_opened(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="pip install wandb"):
        _train(tmp_path, metric_writers=[wandb_writer.WandbWriter], get_dataset_fn=lambda *_: opened.append(1))
    assert not opened and not list(tmp_path.iterdir())


def test_unigram_baseline_is_the_entropy_of_the_targets(tmp_path):
    _train(tmp_path, total_steps=1)
    targets = np.concatenate([small.batch(i)["decoder_target_tokens"].ravel() for i in (100, 101)])
    shares = np.bincount(targets[targets > 0]) / np.sum(targets > 0)
    expected = -np.sum(shares[shares > 0] * np.log(shares[shares > 0]))
    line = writers.read_metrics(tmp_path, "training_eval/")[0]
    assert line["unigram_nats_per_target_token"] == pytest.approx(expected)
    assert line["num_target_tokens"] == np.sum(targets > 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The losses and the last state of six steps without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    _, state = _train(folder, 6)
    return _train_losses(folder), jax.device_get(state)


def test_resuming_repeats_the_uninterrupted_run_to_the_last_bit(tmp_path, whole):
    losses, state = whole
    for steps in (2, 4, 6):
        _, parts = _train(tmp_path, steps)
    assert _train_losses(tmp_path) == losses
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, jax.device_get(b)), state, parts))


def test_a_checkpoint_that_does_not_say_where_the_data_stood(tmp_path, caplog):
    """As T5X's do: the data start anew, whether it is the run's own or the one to begin with, and one line says so."""
    no_position = checkpointing.CheckpointConfig(save=checkpointing.SaveCheckpointConfig(period=2, save_dataset=False))
    _train(tmp_path / "run", 2, checkpoint_cfg=no_position)
    restore = checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "run"), mode="latest", restore_dataset=True)
    beginning = checkpointing.CheckpointConfig(restore=restore)
    for model_dir, config, total_steps in (("run", no_position, 3), ("other", beginning, 4)):
        caplog.clear()
        stream = small.Stream()
        _train(tmp_path / model_dir, total_steps, stream=stream, checkpoint_cfg=config)
        assert stream.next == 1
        assert caplog.text.count("does not say where Limba's data stood") == 1


def test_a_vocabulary_that_was_overwritten_is_still_in_the_checkpoint(tmp_path):
    _train(tmp_path, 2)
    kept = tmp_path / "checkpoint_2" / "run" / "spiece.model"
    kept.write_bytes(b"pieces")
    stream = small.Stream()
    stream.restore_state = mock.Mock(side_effect=ChangedVocabularyError("It had 9 ids.", "vocab/spiece.model"))
    with pytest.raises(ValueError, match=f"It had 9 ids. The run's own is kept in {kept}: copy it to vocab/spiece.m"):
        _train(tmp_path, 4, stream=stream)


@pytest.mark.parametrize("save_dataset", [True, False])
def test_a_drawn_data_seed_is_kept_with_the_place_and_drawn_anew_without(tmp_path, save_dataset):
    save = checkpointing.SaveCheckpointConfig(period=1, save_dataset=save_dataset)
    seeds = []
    for total_steps in (1, 2):
        _train(
            tmp_path,
            total_steps,
            checkpoint_cfg=checkpointing.CheckpointConfig(save=save),
            train_dataset_cfg=DatasetConfig("counter", LENGTHS, "train", 8, seed=None),
        )
        seeds.append(checkpointing.load_run_info(tmp_path)["seeds"]["dataset"])
    assert (seeds[0] == seeds[1]) == save_dataset


def test_a_half_written_line_of_metrics_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "dataset": "train", "loss": 2.5}\n{"step": 2, "dat')
    assert [line["loss"] for line in writers.read_metrics(tmp_path)] == [2.5]


def test_work_after_the_last_checkpoint_is_done_again_and_written_once(tmp_path, whole):
    _train(tmp_path / "cut", 5)  # saves at 2, 4 and, as the last step, 5
    for step in (4, 5):
        checkpointing.checkpoint_path(tmp_path / "cut", step).rename(tmp_path / f"lost_{step}")
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "dataset": "tr')  # what a kill in the middle of a line leaves
    _train(tmp_path / "cut", 6)
    assert _train_losses(tmp_path / "cut") == whole[0]


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
        _train(tmp_path / "run", 6, stream=_StopAt(2))
    assert error.value.code == PREEMPTED_EXIT_CODE
    assert checkpointing.checkpoint_steps(tmp_path / "run") == [2, 3]
    assert run_end.read(tmp_path / "run") == {"kind": "stopped", "reason": "on request"}
    _train(tmp_path / "run", 6)
    assert run_end.read(tmp_path / "run") is None
    assert _train_losses(tmp_path / "run") == whole[0]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_damaged_side_files_and_strange_folders_do_not_keep_a_run_from_resuming(tmp_path, whole):
    _train(tmp_path / "run", 2)
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write('{"step": 2, "dataset": "проба'.encode()[:-1])
    with (tmp_path / "run" / "goodput.jsonl").open("a") as file:
        file.write('{"began": 1.0, "step": 3}\n')
    (tmp_path / "run" / "checkpoint_4").write_text("a file")
    for name in ("checkpoint_030", "checkpoint_٣", "checkpoint_3x", "checkpoint_" + "9" * 40, "checkpoint_-1"):
        (tmp_path / "run" / name).mkdir()
    assert checkpointing.checkpoint_steps(tmp_path / "run") == [2]
    (tmp_path / "run" / "checkpoint_4").unlink()
    _train(tmp_path / "run", 4)
    assert _train_losses(tmp_path / "run") == whole[0][:4]
    for name in ("metrics.jsonl.damaged", "goodput.jsonl.damaged", "checkpoint_030"):
        assert (tmp_path / "run" / name).exists()


def test_a_second_run_in_a_model_dir_changes_nothing(tmp_path):
    _train(tmp_path, 2)
    with run_lock.held(tmp_path):
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(run_lock.RunLockedError, match="is in use by another run"):
            _train(tmp_path, 4)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    _train(tmp_path, 4)
    assert checkpointing.checkpoint_steps(tmp_path) == [2, 4] and not (tmp_path / "run.lock").exists()


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
        _train(tmp_path / "run", 6, stream=_StallsAt(at))
    assert error.value.code == PREEMPTED_EXIT_CODE
    assert checkpointing.checkpoint_steps(tmp_path / "run") == ([2, 3] if at else [])
    stopped = f"Stopped on request at step 3; saved as {tmp_path}/run/checkpoint_3; the same command resumes the run."
    assert not at or stopped in caplog.messages
    _train(tmp_path / "run", 6)
    assert _train_losses(tmp_path / "run") == whole[0]


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
        _train(tmp_path, 6, stream=_StallsInC(3))
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
        _train(tmp_path, 6, stream=_BadTokens())
    assert "step 5" in str(error.value) and "checkpoint_4" in str(error.value)
    assert run_end.read(tmp_path) == {"kind": "failed", "reason": str(error.value)}
    assert checkpointing.checkpoint_steps(tmp_path) == [2, 4]


def test_an_update_that_spoils_the_parameters_is_not_saved(tmp_path):
    """The loss of a step is from before its update: it is still finite when the parameters are not."""

    def infinite_rate(**arguments):
        return trainer.Trainer(learning_rate_fn=lambda step: jnp.where(step == 3, jnp.inf, 0.01), **arguments)

    with pytest.raises(NanLossError, match=r"update of step 4.*checkpoint_2"):
        _train(tmp_path, 6, trainer_cls=infinite_rate)
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


def test_sigterm_during_an_evaluation_saves_too(tmp_path):
    batches = _Evaluation(2, lambda: os.kill(os.getpid(), signal.SIGTERM))  # before training, then at step 3
    with pytest.raises(SystemExit) as error:
        _train(tmp_path, 6, train_eval_get_dataset_fn=lambda *_: {"counter": batches})
    assert error.value.code == PREEMPTED_EXIT_CODE
    assert checkpointing.checkpoint_steps(tmp_path) == [2, 3]


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
        _train(
            tmp_path,
            6,
            train_eval_get_dataset_fn=lambda *_: {"counter": Long()},
            run_eval_before_training=False,
        )
    assert error.value.code == PREEMPTED_EXIT_CODE
    assert checkpointing.checkpoint_steps(tmp_path) == [2, 3] and len(read) == 4
    # The resumed run makes the evaluation that is missing.
    _train(tmp_path, 4)
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

        return _train(
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
    killed = _train_losses(tmp_path / "run")
    caplog.clear()
    begin("run", 0)
    assert made == [1] and not (tmp_path / "run" / "start_values.npz").exists()
    assert f"ended before its first checkpoint: the run begins again, with the seeds {seeds}" in caplog.text
    assert "The initial values are those that an earlier start has made" in caplog.text
    assert checkpointing.load_run_info(tmp_path / "run")["seeds"] == seeds
    assert len(killed) == 3 and _train_losses(tmp_path / "run")[:3] == killed
    assert "3 starts:" in caplog.text and len(goodput.read_attempts(tmp_path / "run")) == 3
    # Other facts, other values.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "start_values.npz").write_bytes(b"torn")
    begin("other", 0)
    assert made == [1, 1] and "start_values.npz is damaged" in caplog.text
    other = checkpointing.load_run_info(tmp_path / "other")["seeds"]
    assert other != seeds and _train_losses(tmp_path / "other") != _train_losses(tmp_path / "run")


def test_sigterm_before_the_first_step_is_a_request_to_stop(tmp_path):
    """While initial values are made, as while a library has the main thread: `limba runs` calls the run stopped."""

    def asks(params, **_):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    with pytest.raises(SystemExit) as error:
        _train(tmp_path / "run", 6, initial_values_fn=asks)
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
        _train(tmp_path, 6, train_eval_get_dataset_fn=lambda *_: {"counter": _Evaluation(3, kill)})
    _train(tmp_path, 6)
    evaluated = [x["step"] for x in writers.read_metrics(tmp_path, "training_eval/")]
    assert evaluated == [0, 3, 6]


def test_a_run_that_died_before_its_first_checkpoint_leaves_no_lines(tmp_path):
    with pytest.raises(NanLossError):
        _train(tmp_path, 6, stream=_BadTokens(first=4))
    assert checkpointing.checkpoint_steps(tmp_path) == []
    _train(tmp_path, 2)
    steps = [(x["dataset"], x["step"]) for x in writers.read_metrics(tmp_path)]
    assert steps == [("training_eval/counter", 0), ("train", 1), ("train", 2), ("training_eval/counter", 2)]


def test_drawn_seeds_survive_a_damaged_checkpoint(tmp_path):
    options = {"random_seed": None, "train_dataset_cfg": DatasetConfig("counter", LENGTHS, "train", 8)}
    _train(tmp_path, 4, **options)
    seeds = checkpointing.load_run_info(tmp_path)["seeds"]
    for file in (tmp_path / "checkpoint_4").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    _train(tmp_path, 6, **options)
    assert checkpointing.load_run_info(tmp_path)["seeds"] == seeds


def test_rates_leave_the_compilation_out(tmp_path):
    _train(tmp_path, 4, stats_period=2, trainer_cls=_make_trainer)  # which compiles, or loads what was compiled
    first, second = [x for x in writers.read_metrics(tmp_path) if x["dataset"] == "train"]
    assert first["timing/compilation_seconds"] > first["timing/seconds"]
    assert "timing/compilation_seconds" not in second
    assert first["timing/steps_per_second"] == pytest.approx(1 / first["timing/seconds"])
    assert second["timing/steps_per_second"] == pytest.approx(2 / second["timing/seconds"])


def test_a_finished_run_is_left_alone(tmp_path, capsys):
    _train(tmp_path, 2)
    before = (tmp_path / "metrics.jsonl").read_text()
    capsys.readouterr()
    step, _ = _train(tmp_path, 2)
    assert step == 2 and (tmp_path / "metrics.jsonl").read_text() == before
    assert "validation loss" in capsys.readouterr().out


def test_initial_checkpoint(tmp_path):
    _, first = _train(tmp_path / "first", 2)
    config = checkpointing.CheckpointConfig(
        restore=checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "first"), mode="latest")
    )
    step, _ = _train(tmp_path / "second", 3, checkpoint_cfg=config)
    assert step == 3
    assert [s for s, _ in _train_losses(tmp_path / "second")] == [3]
    evaluated = [x["step"] for x in writers.read_metrics(tmp_path / "second", "training_eval/")]
    assert evaluated == [2, 3]
    assert int(first.step) == 2


def test_a_seed_that_was_drawn_is_kept(tmp_path):
    options = {"random_seed": None, "train_dataset_cfg": DatasetConfig("counter", LENGTHS, "train", 8)}
    _train(tmp_path, 2, **options)
    seeds = checkpointing.load_run_info(tmp_path)["seeds"]
    _train(tmp_path, 4, **options)
    assert checkpointing.load_run_info(tmp_path)["seeds"] == seeds


def test_relative_model_dir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _train("runs/here", 2)
    assert checkpointing.checkpoint_steps(tmp_path / "runs" / "here") == [2]


class _BigVocabulary(small.FixedVocabulary):
    vocab_size = 300


def _model_with_big_vocabulary():
    model = small.model()
    model._output_vocabulary = _BigVocabulary()
    return model


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": _model_with_big_vocabulary}, ["300 tokens", "256 rows", "384"]),
        ({"partitioner": lambda: small.partitioner(3)}, ["8", "3 data shards"]),
        ({"partitioner": lambda: small.partitioner(8, 8)}, ["num_heads is 2", "size 8"]),
        ({"eval_period": lambda: 0}, ["train.eval_period (EVAL_PERIOD) is 0", "at least 1"]),
        ({"total_steps": lambda: "4"}, ["train.total_steps (TRAIN_STEPS) is '4'"]),
        ({"model_dir": lambda: "hdfs://name/run"}, ["hdfs://name/run", "gs://BUCKET"]),
    ],
)
def test_bad_configurations_fail_before_data_and_compilation(tmp_path, options, words):
    def no_data(*_):
        raise AssertionError("data were opened")

    made = {name: make() for name, make in options.items()}
    with pytest.raises(ValueError) as error:
        _train(**({"model_dir": tmp_path / "run"} | made), get_dataset_fn=no_data)
    for word in words:
        assert word in str(error.value)
    assert not (tmp_path / "run").exists()


def test_unwritable_model_dir(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"MODEL_DIR .*file/run cannot be written"):
        _train(tmp_path / "file" / "run")


def test_run_files_are_json_and_gin(tmp_path):
    _train(tmp_path, 2)
    files = checkpointing.load_files(tmp_path / "checkpoint_2", "run")
    info = json.loads(files["run.json"])
    assert info["feature_lengths"] == LENGTHS
    assert info["total_steps"] == 2
    assert info["commits"] == code_versions.commits()
    assert info["kernels"] == []  # on a CPU there are none
    assert "config.gin" in files


def test_more_writers_are_told_where_a_run_goes_on(tmp_path):
    opened, written = [], []

    class Recorder:
        def __init__(self, model_dir, keep_until):
            opened.append((model_dir, keep_until))

        def write_scalars(self, step, dataset, scalars):
            written.append((step, dataset))

        def write_text(self, step, dataset, name, text):
            written.append((step, name))

        def close(self):
            written.append("closed")

    _train(tmp_path, 2, metric_writers=[Recorder], eval_period=2)
    _train(tmp_path, 3, metric_writers=[Recorder], train_eval_dataset_cfg=None)
    assert opened == [(tmp_path, -1), (tmp_path, 2)]
    evaluation = "training_eval/counter"
    first = [(0, "config"), (0, evaluation), (1, "train"), (2, "train"), (2, evaluation), "closed"]
    assert written == [*first, (2, "config"), (3, "train"), "closed"]


# ------------------------------------------------------ a full disk --------------------------------------------------


@contextlib.contextmanager
def _files_up_to(limit):
    """As a full disk: what is longer cannot be written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class _StreamWhileItFillsUp(small.Stream):
    """After the checkpoint of step 2 nothing large can be written."""

    def __init__(self, fill, model_dir):
        super().__init__()
        self._fill, self._model_dir, self.made = fill, model_dir, 0

    def __next__(self):
        self.made += 1
        if self.made == 4:
            while not checkpointing.checkpoint_steps(self._model_dir):
                time.sleep(0.01)
            self._fill()
        if self.made > 4:
            time.sleep(0.2)  # The save is in the background.
        return super().__next__()


def test_a_checkpoint_that_cannot_be_written_ends_the_run(tmp_path, capfd):
    """With one message that has the checkpoint to go on from, soon, and nothing half-written."""
    save = checkpointing.SaveCheckpointConfig(period=2)
    with _files_up_to(20_000) as fill, pytest.raises(checkpointing.SaveError) as error:
        _train(
            tmp_path,
            total_steps=40,
            stream=_StreamWhileItFillsUp(fill, tmp_path),
            checkpoint_cfg=checkpointing.CheckpointConfig(save=save),
            train_eval_dataset_cfg=None,
        )
    assert f"{tmp_path}/checkpoint_4 cannot be written: " in str(error.value)
    assert f"The last good one is {tmp_path}/checkpoint_2." in str(error.value)
    assert error.value.exit_code == 74
    assert [path.name for path in tmp_path.glob("checkpoint*")] == ["checkpoint_2"]
    assert "Traceback" not in capfd.readouterr().err
    step, _ = _train(tmp_path, total_steps=6)
    assert step == 6 and checkpointing.checkpoint_steps(tmp_path) == [2, 4, 6]


def test_a_disk_that_is_full_is_called_so(tmp_path, monkeypatch):
    def full(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: Error writing local file: ENOSPC No space left on device")

    monkeypatch.setattr(classic_format, "write", full)
    with pytest.raises(
        checkpointing.SaveError, match=r"the disk is full \(.* MB free\)\. No checkpoint was saved before"
    ):
        _train(tmp_path, total_steps=2, use_orbax=False)


def test_metrics_that_cannot_be_written_end_the_run_with_the_checkpoint(tmp_path):
    class Writer(writers.JsonLinesWriter):
        def write_scalars(self, step, dataset, scalars):
            if step == 3:
                raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(checkpointing.SaveError, match=r"the disk is full.*The last good one is .*checkpoint_2"):
        _train(tmp_path, total_steps=6, metric_writers=[Writer])


def test_a_disk_that_will_be_full_is_said_before_the_first_step(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(disk, "free_bytes", lambda _: 50_000)
    with caplog.at_level(logging.WARNING):
        _train(tmp_path, total_steps=6)
    assert re.search(r"will be full before the end: 3 checkpoints of .*, of which 3 stay, need .* free", caplog.text)


# ------------------------------------------------------ where it lies ------------------------------------------------


@pytest.mark.parametrize("name", ["../up/two words/é/東/", "~/x", "link/../x"])
def test_a_run_is_resumed_wherever_it_lies(name, tmp_path, monkeypatch):
    """And found under every way to write its folder."""
    (tmp_path / "work").mkdir()
    (tmp_path / "far" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work" / "link").symlink_to(tmp_path / "far" / "deep")
    _train(name, 2, train_eval_dataset_cfg=None)
    step, _ = _train(name, 4, train_eval_dataset_cfg=None)
    assert step == 4 and checkpointing.checkpoint_steps(name) == [2, 4]
    assert _train_losses(local_path(name))[0][0] == 1 and len(_train_losses(local_path(name))) == 4
    assert checkpointing.load_run_info(name)["seeds"]["random"] == 7
    assert int(saved_tensors.open_tensors(checkpointing.find_checkpoint(name))["state/step"].read(())) == 4


def test_a_finished_run_says_so_and_keeps_its_goodput(tmp_path, caplog):
    _train(tmp_path, 2)
    before = (tmp_path / "goodput.jsonl").read_text()
    with caplog.at_level(logging.INFO):
        step, _ = _train(tmp_path, 2)
    assert step == 2 and (tmp_path / "goodput.jsonl").read_text() == before
    assert f"{tmp_path} is already at step 2 of 2: nothing is trained. To go on, give more steps" in caplog.text
