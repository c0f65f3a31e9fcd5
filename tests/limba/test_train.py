import contextlib
import errno
import json
import logging
import re
import resource
import sys
import time
from unittest import mock

import jax
import numpy as np
import pytest

from limba.checkpoint_files import classic_format, saved_tensors
from limba.checkpoints import checkpointing
from limba.data.contract import ChangedVocabularyError, DatasetConfig
from limba.files import disk
from limba.files.local_paths import local_path
from limba.optimizers.schedules import create_learning_rate_scheduler
from limba.reports import run_lock, wandb_writer, writers
from limba.training import trainer
from limba.training.from_counts.start_from_counts import StartFromCounts
from limba.workers import code_versions
from tests.limba import small

LENGTHS = {"inputs": 16, "targets": 8}


def _make_trainer(**arguments):
    return trainer.Trainer(learning_rate_fn=create_learning_rate_scheduler("constant", 0.01), **arguments)


def test_a_run_writes_what_it_promises(tmp_path, capsys, caplog):
    caplog.set_level(logging.INFO)
    step, state = small.train(tmp_path, log_every=4)
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
        step, _ = small.train(tmp_path, total_steps, initial_values_fn=no_weights)
    assert step == 4 and changed == [(small.tiny_model(), "train")]
    at_0 = next(line for line in writers.read_metrics(tmp_path, "training_eval/") if line["step"] == 0)
    assert at_0["nats_per_target_token"] == pytest.approx(np.log(small.VOCAB_SIZE))
    wrong_shapes = lambda params, **_: jax.tree.map(lambda x: x[..., :1], params)  # noqa: E731
    with pytest.raises(ValueError, match=r"A changed parameter has the shape \(1,\); the network's has \(16,\)"):
        small.train(tmp_path / "other", 2, initial_values_fn=wrong_shapes)


def test_a_start_from_counts_refuses_a_network_before_the_data_are_opened(tmp_path):
    opened = []
    tied = small.model(logits_via_embedding=True, **small.TINY)
    with pytest.raises(ValueError, match=r"A start from counts .*: logits_via_embedding is True"):
        small.train(
            tmp_path, model=tied, initial_values_fn=StartFromCounts(), get_dataset_fn=lambda *_: opened.append(1)
        )
    with pytest.raises(ValueError, match=r"train\.get_dataset_fn is a function of your own: leave"):
        small.train(tmp_path, initial_values_fn=StartFromCounts(), get_dataset_fn=lambda *_: opened.append(1))
    with pytest.raises(ValueError, match="needs a method `changed` of train_state_initializer_cls"):
        small.train(tmp_path, initial_values_fn=StartFromCounts(), train_state_initializer_cls=lambda **_: object())
    assert not opened and not list(tmp_path.iterdir())


def test_a_writer_that_cannot_work_is_found_before_the_data_are_opened(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="pip install wandb"):
        small.train(tmp_path, metric_writers=[wandb_writer.WandbWriter], get_dataset_fn=lambda *_: opened.append(1))
    assert not opened and not list(tmp_path.iterdir())


def test_unigram_baseline_is_the_entropy_of_the_targets(tmp_path):
    small.train(tmp_path, total_steps=1)
    targets = np.concatenate([small.batch(i)["decoder_target_tokens"].ravel() for i in (100, 101)])
    shares = np.bincount(targets[targets > 0]) / np.sum(targets > 0)
    expected = -np.sum(shares[shares > 0] * np.log(shares[shares > 0]))
    line = writers.read_metrics(tmp_path, "training_eval/")[0]
    assert line["unigram_nats_per_target_token"] == pytest.approx(expected)
    assert line["num_target_tokens"] == np.sum(targets > 0)


def test_resuming_repeats_the_uninterrupted_run_to_the_last_bit(tmp_path, whole):
    losses, state = whole
    for steps in (2, 4, 6):
        _, parts = small.train(tmp_path, steps)
    assert small.train_losses(tmp_path) == losses
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, jax.device_get(b)), state, parts))


def test_a_checkpoint_that_does_not_say_where_the_data_stood(tmp_path, caplog):
    """As T5X's do: the data start anew, whether it is the run's own or the one to begin with, and one line says so."""
    no_position = checkpointing.CheckpointConfig(save=checkpointing.SaveCheckpointConfig(period=2, save_dataset=False))
    small.train(tmp_path / "run", 2, checkpoint_cfg=no_position)
    restore = checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "run"), mode="latest", restore_dataset=True)
    beginning = checkpointing.CheckpointConfig(restore=restore)
    for model_dir, config, total_steps in (("run", no_position, 3), ("other", beginning, 4)):
        caplog.clear()
        stream = small.Stream()
        small.train(tmp_path / model_dir, total_steps, stream=stream, checkpoint_cfg=config)
        assert stream.next == 1
        assert caplog.text.count("does not say where Limba's data stood") == 1


def test_a_vocabulary_that_was_overwritten_is_still_in_the_checkpoint(tmp_path):
    small.train(tmp_path, 2)
    kept = tmp_path / "checkpoint_2" / "run" / "spiece.model"
    kept.write_bytes(b"pieces")
    stream = small.Stream()
    stream.restore_state = mock.Mock(side_effect=ChangedVocabularyError("It had 9 ids.", "vocab/spiece.model"))
    with pytest.raises(ValueError, match=f"It had 9 ids. The run's own is kept in {kept}: copy it to vocab/spiece.m"):
        small.train(tmp_path, 4, stream=stream)


@pytest.mark.parametrize("save_dataset", [True, False])
def test_a_drawn_data_seed_is_kept_with_the_place_and_drawn_anew_without(tmp_path, save_dataset):
    save = checkpointing.SaveCheckpointConfig(period=1, save_dataset=save_dataset)
    seeds = []
    for total_steps in (1, 2):
        small.train(
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
    small.train(tmp_path / "cut", 5)  # saves at 2, 4 and, as the last step, 5
    for step in (4, 5):
        checkpointing.checkpoint_path(tmp_path / "cut", step).rename(tmp_path / f"lost_{step}")
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "dataset": "tr')  # what a kill in the middle of a line leaves
    small.train(tmp_path / "cut", 6)
    assert small.train_losses(tmp_path / "cut") == whole[0]


def test_damaged_side_files_and_strange_folders_do_not_keep_a_run_from_resuming(tmp_path, whole):
    small.train(tmp_path / "run", 2)
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write('{"step": 2, "dataset": "проба'.encode()[:-1])
    with (tmp_path / "run" / "goodput.jsonl").open("a") as file:
        file.write('{"began": 1.0, "step": 3}\n')
    (tmp_path / "run" / "checkpoint_4").write_text("a file")
    for name in ("checkpoint_030", "checkpoint_٣", "checkpoint_3x", "checkpoint_" + "9" * 40, "checkpoint_-1"):
        (tmp_path / "run" / name).mkdir()
    assert checkpointing.checkpoint_steps(tmp_path / "run") == [2]
    (tmp_path / "run" / "checkpoint_4").unlink()
    small.train(tmp_path / "run", 4)
    assert small.train_losses(tmp_path / "run") == whole[0][:4]
    for name in ("metrics.jsonl.damaged", "goodput.jsonl.damaged", "checkpoint_030"):
        assert (tmp_path / "run" / name).exists()


def test_a_second_run_in_a_model_dir_changes_nothing(tmp_path):
    small.train(tmp_path, 2)
    with run_lock.held(tmp_path):
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(run_lock.RunLockedError, match="is in use by another run"):
            small.train(tmp_path, 4)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    small.train(tmp_path, 4)
    assert checkpointing.checkpoint_steps(tmp_path) == [2, 4] and not (tmp_path / "run.lock").exists()


def test_rates_leave_the_compilation_out(tmp_path):
    small.train(tmp_path, 4, stats_period=2, trainer_cls=_make_trainer)  # which compiles, or loads what was compiled
    first, second = [x for x in writers.read_metrics(tmp_path) if x["dataset"] == "train"]
    assert first["timing/compilation_seconds"] > first["timing/seconds"]
    assert "timing/compilation_seconds" not in second
    assert first["timing/steps_per_second"] == pytest.approx(1 / first["timing/seconds"])
    assert second["timing/steps_per_second"] == pytest.approx(2 / second["timing/seconds"])


def test_a_finished_run_is_left_alone_and_says_so(tmp_path, capsys, caplog):
    small.train(tmp_path, 2)
    before = [(tmp_path / name).read_text() for name in ("metrics.jsonl", "goodput.jsonl")]
    capsys.readouterr()
    with caplog.at_level(logging.INFO):
        step, _ = small.train(tmp_path, 2)
    assert step == 2 and before == [(tmp_path / name).read_text() for name in ("metrics.jsonl", "goodput.jsonl")]
    assert "validation of counter at step 2: the 64 targets" in capsys.readouterr().out
    assert f"{tmp_path} is already at step 2 of 2: nothing is trained. To go on, give more steps" in caplog.text


def test_initial_checkpoint(tmp_path):
    _, first = small.train(tmp_path / "first", 2)
    config = checkpointing.CheckpointConfig(
        restore=checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "first"), mode="latest")
    )
    step, _ = small.train(tmp_path / "second", 3, checkpoint_cfg=config)
    assert step == 3
    assert [s for s, _ in small.train_losses(tmp_path / "second")] == [3]
    evaluated = [x["step"] for x in writers.read_metrics(tmp_path / "second", "training_eval/")]
    assert evaluated == [2, 3]
    assert int(first.step) == 2


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
        small.train(**({"model_dir": tmp_path / "run"} | made), get_dataset_fn=no_data)
    for word in words:
        assert word in str(error.value)
    assert not (tmp_path / "run").exists()


def test_unwritable_model_dir(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"MODEL_DIR .*file/run cannot be written"):
        small.train(tmp_path / "file" / "run")


def test_run_files_are_json_and_gin(tmp_path):
    small.train(tmp_path, 2)
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

    small.train(tmp_path, 2, metric_writers=[Recorder], eval_period=2)
    small.train(tmp_path, 3, metric_writers=[Recorder], train_eval_dataset_cfg=None)
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
        small.train(
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
    step, _ = small.train(tmp_path, total_steps=6)
    assert step == 6 and checkpointing.checkpoint_steps(tmp_path) == [2, 4, 6]


def test_a_disk_that_is_full_is_called_so(tmp_path, monkeypatch):
    def full(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: Error writing local file: ENOSPC No space left on device")

    monkeypatch.setattr(classic_format, "write", full)
    with pytest.raises(
        checkpointing.SaveError, match=r"the disk is full \(.* MB free\)\. No checkpoint was saved before"
    ):
        small.train(tmp_path, total_steps=2, use_orbax=False)


def test_metrics_that_cannot_be_written_end_the_run_with_the_checkpoint(tmp_path):
    class Writer(writers.JsonLinesWriter):
        def write_scalars(self, step, dataset, scalars):
            if step == 3:
                raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(checkpointing.SaveError, match=r"the disk is full.*The last good one is .*checkpoint_2"):
        small.train(tmp_path, total_steps=6, metric_writers=[Writer])


def test_a_disk_that_will_be_full_is_said_before_the_first_step(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(disk, "free_bytes", lambda _: 50_000)
    with caplog.at_level(logging.WARNING):
        small.train(tmp_path, total_steps=6)
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
    small.train(name, 2, train_eval_dataset_cfg=None)
    step, _ = small.train(name, 4, train_eval_dataset_cfg=None)
    assert step == 4 and checkpointing.checkpoint_steps(name) == [2, 4]
    assert small.train_losses(local_path(name))[0][0] == 1 and len(small.train_losses(local_path(name))) == 4
    assert checkpointing.load_run_info(name)["seeds"]["random"] == 7
    assert int(saved_tensors.open_tensors(checkpointing.find_checkpoint(name))["state/step"].read(())) == 4
