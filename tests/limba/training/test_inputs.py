"""The first batch is read while the model compiles; an error of reading, or reading without end, stays what it was."""

import functools
import subprocess
import sys
import threading

import jax
import pytest

from limba.checkpoints import checkpointing
from limba.data.contract import DatasetConfig
from limba.optimizers.schedules import create_learning_rate_scheduler
from limba.train import train
from limba.training import configured_trainer, inputs, trainer
from limba.training.trainer import StepAhead
from tests import house
from tests.limba import small

LENGTHS = {"inputs": 16, "targets": 8}
Trainer = functools.partial(trainer.Trainer, learning_rate_fn=create_learning_rate_scheduler("constant", 0.01))


class _TaskStream(small.Stream):
    """A stream that knows its tasks, as Limba's own; it says in which thread each batch is read."""

    task_groups = {}

    def __init__(self, wait=None):
        super().__init__()
        self.wait, self.threads = wait, []

    def epochs(self):
        return {}

    def __next__(self):
        self.threads.append(threading.current_thread().name)
        if self.wait is not None:
            assert self.wait.wait(timeout=300), "the step is not compiled while the first batch is read"
        return super().__next__()


def _train(model_dir, stream, total_steps=2):
    return train(
        model=small.model(**small.TINY),
        train_dataset_cfg=DatasetConfig("counter", LENGTHS, "train", 8, seed=0),
        checkpoint_cfg=checkpointing.CheckpointConfig(save=checkpointing.SaveCheckpointConfig(period=100)),
        partitioner=small.partitioner(),
        trainer_cls=Trainer,
        model_dir=str(model_dir),
        total_steps=total_steps,
        random_seed=7,
        get_dataset_fn=lambda *_: stream,
        verify_matching_vocabs_fn=None,
    )


@pytest.fixture
def step_compilations():
    """The threads of the compilations of the training step."""
    compiled = []

    def listen(name, seconds, **of):
        if name.endswith("backend_compile_duration") and of.get("fun_name") == "jit(step)":
            compiled.append(threading.current_thread().name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield compiled
    jax.monitoring.unregister_event_duration_listener(listen)


def test_the_step_is_compiled_once_in_a_thread_while_the_first_batch_is_read(tmp_path, monkeypatch, step_compilations):
    _, expected = _train(tmp_path / "quick", small.Stream())
    assert step_compilations == ["MainThread"]  # only the data tell the shapes of a stream of a user's own
    step_compilations.clear()
    wait, done = StepAhead.wait, threading.Event()

    def wait_and_tell(ahead):
        wait(ahead)
        assert step_compilations == ["compiling"]
        done.set()

    monkeypatch.setattr(StepAhead, "wait", wait_and_tell)
    stream = _TaskStream(wait=done)
    _, state = _train(tmp_path / "slow", stream)
    assert step_compilations == ["compiling"]
    assert stream.threads == ["first batch", "MainThread"]
    jax.tree.map(lambda a, b: (a == b).all() or pytest.fail("other parameters"), expected.params, state.params)


def _step_ahead(trainer):
    config = DatasetConfig("counter", LENGTHS, "train", 8, seed=0)
    return StepAhead(trainer, lambda: configured_trainer.next_shapes(trainer, _TaskStream(), config))


def test_a_step_whose_rate_was_scaled_is_compiled_anew(step_compilations):
    small_trainer = small.make_trainer(small.model(**small.TINY), small.partitioner())
    ahead = _step_ahead(small_trainer)
    ahead.begin()
    ahead.begin()
    ahead.wait()
    assert step_compilations == ["compiling"]
    small_trainer.scale_rate(0.5)
    ahead.wait()
    assert step_compilations == ["compiling", "MainThread"]


def test_an_error_of_compiling_is_raised_to_who_waits(monkeypatch):
    def fail(self):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    small_trainer = small.make_trainer(small.model(**small.TINY), small.partitioner())
    ahead = _step_ahead(small_trainer)
    monkeypatch.setattr(jax.stages.Lowered, "compile", fail)
    ahead.begin()
    with pytest.raises(RuntimeError, match=r"^RESOURCE_EXHAUSTED: out of memory$"):
        ahead.wait()


def test_a_resumed_run_reads_from_its_position(tmp_path):
    stream = _TaskStream()
    _train(tmp_path, stream, total_steps=2)
    assert stream.next == 2
    resumed = _TaskStream()
    _train(tmp_path, resumed, total_steps=3)
    assert (resumed.next, resumed.threads) == (3, ["first batch"])
    nothing_to_do = _TaskStream()
    _train(tmp_path, nothing_to_do, total_steps=3)
    assert nothing_to_do.threads == []


def test_an_error_of_the_first_batch_is_raised_as_it_is(tmp_path):
    class Broken(_TaskStream):
        def __next__(self):
            raise ValueError("corpus.jsonl, line 3: no text")

    with pytest.raises(ValueError, match=r"^corpus.jsonl, line 3: no text$"):
        _train(tmp_path, Broken())


def test_a_batch_that_never_comes_does_not_keep_the_process_from_ending():
    code = """
import threading
from limba.training import inputs

class Never:
    def __next__(self):
        threading.Event().wait()

inputs.FirstBatch(Never()).begin()
raise SystemExit(3)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=house.ROOT, timeout=120).returncode == 3


def test_begin_reads_one_batch_once():
    stream = _TaskStream()
    first = inputs.FirstBatch(stream)
    assert not first.is_there
    first.begin()
    first.begin()
    (batch,) = first
    assert first.is_there
    assert (batch["decoder_target_tokens"] == small.batch(0)["decoder_target_tokens"]).all()
    assert stream.next == 1
