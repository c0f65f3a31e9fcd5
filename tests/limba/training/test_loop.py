"""What `train()` does besides stepping: actions, tags, periods, T5X hooks. Tiny models; test_train has the rest."""

import dataclasses
import functools
import gc
import itertools
import logging
import threading
import types

import jax
import numpy as np
import pytest
from flax import traverse_util

from limba import models
from limba.checkpoints import checkpointing
from limba.data.contract import DatasetConfig
from limba.inference import evaluation
from limba.inference.kept_batches import KeptBatch
from limba.models import metrics
from limba.optimizers import adafactor
from limba.optimizers.schedules import create_learning_rate_scheduler
from limba.reports import goodput, progress, writers
from limba.train import train
from limba.training import actions, loop, periodic_evaluation, trainer
from limba.training.run import Periods
from limba.training.trainer import WeightMetricsComputer
from limba.workers import watchdog
from tests.limba import event_files, small

LENGTHS = {"inputs": 16, "targets": 8}


def _train(model_dir, total_steps=4, model=None, save=None, restore=None, **options):
    """`train()` on the counter stream of `small`, evaluating every second step on two fixed batches of two tasks."""
    batches = [small.batch(100), small.batch(101)]
    arguments = small.training(model_dir, total_steps) | {
        "model": model or small.tiny_model(),
        "checkpoint_cfg": checkpointing.CheckpointConfig(
            save=save or checkpointing.SaveCheckpointConfig(period=100), restore=restore
        ),
        "train_eval_get_dataset_fn": lambda *_: {"a": batches, "b": batches[:1]},
    }
    return train(**(arguments | options))


def _lines(model_dir, dataset):
    return [line for line in writers.read_metrics(model_dir) if line["dataset"] == dataset]


# ------------------------------------------------------- tags ---------------------------------------------------------

MODEL_TAGS = {
    "accuracy", "loss", "loss_per_nonpadding_target_token", "loss_per_all_target_tokens", "z_loss",
    "z_loss_per_all_target_tokens", "cross_ent_loss", "cross_ent_loss_per_all_target_tokens",
    "effective_batch_size/encoder", "effective_batch_size/decoder", "non_padding_fraction/encoder",
    "non_padding_fraction/decoder", "non_padding_fraction/loss_weights", "non_padding_fraction/overall",
    "timing/seconds", "timing/seqs", "timing/steps_per_second", "timing/seqs_per_second",
    "timing/seqs_per_second_per_core", "timing/target_tokens_per_second", "timing/target_tokens_per_second_per_core",
    "timing/compilation_seconds",
}  # fmt: skip
# What a run of T5X with evaluation, prediction and checkpoints writes to `train`.
TRAIN_TAGS = MODEL_TAGS | {
    "learning_rate", "learning_rate/current", "timing/uptime", "timing/init_or_restore_seconds",
    "timing/train_iter_warmup", "timing/checkpoint_seconds", "timing/evaluate_seconds", "config",
}  # fmt: skip
WEIGHT_TAGS = (
    "weight_rms",
    "weight_max",
    "weight_gradient_rms",
    "weight_update_rms",
    "weight_update_divided_by_weight_rms",
)


class _Evaluator:
    """Stands in for `evaluation.InferenceEvaluator`: the "accuracy" of step n of two tasks is n and n / 2."""

    eval_tasks = ("a", "b")
    counts = {"b": {"num_examples": 3}}

    def __init__(self, config, evaluator_cls, model, partitioner, log_dir, verify_matching_vocabs_fn):
        assert verify_matching_vocabs_fn is None

    def close(self):
        """Nothing to do."""

    def evaluate(self, params, step, check=lambda: None):
        return {"a": {"accuracy": float(step), "text": "none"}, "b": {"accuracy": np.float32(step / 2)}}


@pytest.fixture
def predictions(monkeypatch):
    """Arguments of a run that evaluates predictions."""
    monkeypatch.setattr(evaluation, "InferenceEvaluator", _Evaluator)
    return {"infer_eval_dataset_cfg": DatasetConfig("counter", None, "validation", 8, seed=0)}


def test_tensorboard_has_the_tags_of_t5x(tmp_path, predictions):
    averages = {"mean/accuracy": ["a", "b"]}
    _train(
        tmp_path,
        trainer_cls=functools.partial(small.SharedTrainer, weight_metrics_computer=WeightMetricsComputer()),
        training_eval_average_metrics=averages,
        infer_eval_average_metrics=averages,
        run_eval_before_training=True,
        **predictions,
    )
    names = traverse_util.flatten_dict(small.make_trainer(small.model(**small.TINY)).param_shapes, sep="/")
    weights = {f"{tag}/{name}" for tag in WEIGHT_TAGS for name in names} | {"weight_gradient_norm"}
    train_tags = event_files.read_tags(tmp_path / "train")
    first_group = {"0_first/loss", "0_first/learning_rate", "0_first/tokens_per_second"}
    assert first_group <= set(train_tags) and min(train_tags).startswith("0_first/")
    ours = {
        "timing/tokens_per_second",
        "num_target_tokens",
        *first_group,
        "goodput/fraction",
        *(f"goodput/{kind}_seconds" for kind in goodput.KINDS),
    }
    assert set(train_tags) - ours == TRAIN_TAGS | weights
    assert list(train_tags["timing/evaluate_seconds"]) == [0, 2, 4]
    ours = {
        "0_first/loss",
        "nats_per_target_token",
        "unigram_nats_per_target_token",
        "num_target_tokens",
        "timing/evaluate_seconds",
        *("nats_per_text_token", "nats_per_text_token_renormalized", "text_accuracy", "text_top_5_accuracy"),
        *("text_accuracy_renormalized", "text_top_5_accuracy_renormalized"),
        *("num_text_tokens", "nats_per_sentinel", "nats_per_eos"),
        *("nats_per_text_token/first_of_span", "nats_per_text_token/later_in_span"),
    }
    for task in ("a", "b"):
        tags = event_files.read_tags(tmp_path / "training_eval" / task)
        assert set(tags) - ours == MODEL_TAGS
        assert list(tags["loss"]) == [0, 2, 4] and list(tags["timing/compilation_seconds"]) == [0]
    mean = event_files.read_tags(tmp_path / "training_eval" / "mean")
    accuracies = [event_files.read_tags(tmp_path / "training_eval" / task)["accuracy"] for task in "ab"]
    assert mean["accuracy"][4] == pytest.approx((accuracies[0][4] + accuracies[1][4]) / 2)
    assert event_files.read_tags(tmp_path / "inference_eval" / "mean") == {"eval/accuracy": {0: 0.0, 2: 1.5, 4: 3.0}}
    assert [line["eval/accuracy"] for line in _lines(tmp_path, "inference_eval/b")] == [0, 1, 2]
    assert {line["num_examples"] for line in _lines(tmp_path, "inference_eval/b")} == {3}


def test_an_average_of_a_metric_that_a_task_lacks_names_both():
    results = {"a": {"accuracy": 0.5}, "b": {"bleu": 1.0, "f1": 2.0}}
    with pytest.raises(ValueError, match=r"'mean/accuracy': b has \['bleu', 'f1'\], no 'accuracy'"):
        periodic_evaluation._add_averages(results, {"mean/accuracy": ["a", "b"]})


# ------------------------------------------------------ actions -------------------------------------------------------


class _StopAt(actions.BaseAction):
    def __init__(self, step):
        self.step, self.seen = step, []

    def run(self, train_state, metrics_by_task):
        self.seen.append((int(train_state.step), {task: set(metrics) for task, metrics in metrics_by_task.items()}))
        return int(train_state.step) == self.step


@pytest.mark.parametrize(
    ("mode", "step", "seen", "concurrent_metrics"),
    [("TRAIN", 3, [1, 2, 3], True), ("TRAIN_EVAL", 4, [2, 4], False), ("INFER_EVAL", 2, [2], True)],
)
def test_an_action_of_every_mode_ends_training_with_a_checkpoint(
    tmp_path, predictions, caplog, mode, step, seen, concurrent_metrics
):
    action = _StopAt(step)
    with caplog.at_level(logging.INFO):
        last, state = _train(
            tmp_path, 9, actions={mode: [action]}, concurrent_metrics=concurrent_metrics, **predictions
        )
    assert last == int(state.step) == step
    assert checkpointing.checkpoint_steps(tmp_path) == [step]
    assert [s for s, _ in action.seen] == seen
    metrics = action.seen[-1][1]
    assert "loss" in metrics["train"] if mode == "TRAIN" else "accuracy" in metrics["a"]
    assert f"An action ended training at step {step} of 9; saved as {tmp_path}/checkpoint_{step}" in caplog.text


def test_early_stopping_goes_on_where_the_run_was_interrupted(tmp_path):
    def stopping():
        return {"TRAIN_EVAL": [actions.EarlyStoppingAction(("a", "num_target_tokens"), "max", patience=3)]}

    assert _train(tmp_path / "whole", 20, actions=stopping())[0] == 6
    _train(tmp_path / "parts", 3, actions=stopping(), eval_period=100)  # an evaluation at its end
    assert _train(tmp_path / "parts", 20, actions=stopping())[0] == 6  # and at 4 and 6


def test_the_rate_drops_on_a_plateau_also_over_a_restart(tmp_path):
    def rates(total_steps):
        # The loss falls, which "max" takes for no improvement.
        action = actions.DropOnPlateauAction(("a", "loss"), "max", patience=1)
        _train(tmp_path, total_steps, actions={"TRAIN_EVAL": [action]})
        return [line["learning_rate"] for line in _lines(tmp_path, "train") if "learning_rate" in line]

    assert rates(5) == pytest.approx([0.01] * 4 + [0.005])
    # Evaluated at steps 2, 4 and 5.
    assert rates(6) == pytest.approx([0.01] * 4 + [0.005, 0.0025])


def test_epochs_are_counted_once_and_trained_from_the_initial_checkpoint_on(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        for _ in range(2):  # 24 rows are 3 steps; a run that is done is done
            step, _ = _train(tmp_path, total_steps=0, epochs=0.5)
            assert step == 2
    assert checkpointing.load_run_info(tmp_path)["rows_per_epoch"] == 24
    assert caplog.text.count("0.5 epochs of 24 rows in batches of 8 are 2 steps.") == 2


def test_skipped_nan_updates_do_not_end_a_run(tmp_path, caplog):
    class NanAtStep2(small.Stream):
        def __next__(self):
            step, made = self.next, super().__next__()
            return made | {
                "decoder_loss_weights": made["decoder_loss_weights"] * np.float32(np.nan if step == 1 else 1)
            }

    model = small.model(adafactor.Adafactor(skip_nan_updates=True), **small.TINY)
    step, state = _train(tmp_path, 4, model=model, get_dataset_fn=lambda *_: NanAtStep2(), train_eval_dataset_cfg=None)
    assert step == 4 and all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(state.params)))
    assert "loss of step 2 is nan" in caplog.text


# --------------------------------------------------- steps and periods ------------------------------------------------


def test_evaluations_begin_after_their_delay_and_the_end_has_one():
    periods = Periods(10, 2, 5, None, 0, evaluation_delay=5)
    assert [step for step in range(1, 11) if periods.evaluates(step)] == [6, 8, 10]
    late = Periods(3, 2, 5, None, 0, evaluation_delay=5)
    assert [step for step in range(1, 4) if late.evaluates(step)] == [3]


@pytest.mark.parametrize(("period", "checkpoint_steps"), [(4, None), (None, [3, 7, 99]), (5, [5, 6, 6]), (None, None)])
@pytest.mark.parametrize(("total", "evaluation", "delay"), [(10, 2, 5), (11, 4, 0), (3, 3, 5), (12, 100, 0), (9, 3, 9)])
def test_what_comes_after_a_step_is_counted(total, evaluation, delay, period, checkpoint_steps):
    save = checkpointing.SaveCheckpointConfig(period=period, checkpoint_steps=checkpoint_steps)
    periods = Periods(total, evaluation, 5, save, 0, evaluation_delay=delay)
    for step in range(total + 1):
        later = range(step + 1, total + 1)
        assert periods.evaluations_after(step) == sum(map(periods.evaluates, later)), step
        assert periods.saves_after(step) == sum(map(periods.saves, later)), step
    assert dataclasses.replace(periods, save=None).saves_after(0) == 0


def test_relative_steps_count_from_the_initial_checkpoint_and_survive_a_restart(tmp_path):
    _train(tmp_path / "first", 3)
    restore = checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "first" / "checkpoint_3"), mode="specific")
    with pytest.raises(ValueError, match=r"TRAIN_STEPS\) is 2, and the initial checkpoint is at step 3"):
        _train(tmp_path / "less", 2, restore=restore)

    class Killed(Exception):
        pass

    def kill(*_):
        raise Killed

    options = {"total_steps": 0, "relative_steps": 4, "restore": restore}
    save = checkpointing.SaveCheckpointConfig(period=100, checkpoint_steps=[5])
    with pytest.raises(Killed):
        _train(tmp_path / "second", save=save, actions={"TRAIN_EVAL": [_KillAfter(5, kill)]}, **options)
    assert checkpointing.checkpoint_steps(tmp_path / "second") == [5]
    assert _train(tmp_path / "second", **options)[0] == 7


class _KillAfter(actions.BaseAction):
    def __init__(self, step, kill):
        self.step, self.kill = step, kill

    def run(self, train_state, metrics_by_task):
        if int(train_state.step) > self.step:
            self.kill()
        return False


def test_statistics_are_written_at_the_shortest_period(tmp_path):
    collected = []

    def count(phase, info):
        collected.append((phase, info["generation"]))

    gc.callbacks.append(count)
    try:
        _train(tmp_path, 6, stats_period=None, eval_period=4, gc_period=3)
    finally:
        gc.callbacks.remove(count)
    assert [line["step"] for line in _lines(tmp_path, "train")] == [3, 6]
    assert [line["timing/seqs"] for line in _lines(tmp_path, "train")] == [16, 24]  # the first step compiled
    assert ("stop", 2) in collected and gc.isenabled()


def test_a_run_that_saves_nothing(tmp_path):
    step, _ = _train(tmp_path, checkpoint_cfg=checkpointing.CheckpointConfig(save=None, restore=None))
    assert step == 4 and checkpointing.checkpoint_steps(tmp_path) == []


def test_the_classic_format_is_resumed_exactly(tmp_path):
    save = checkpointing.SaveCheckpointConfig(period=2)
    _, whole = _train(tmp_path / "whole", 4, save=save)
    for total_steps in (2, 4):
        _, parts = _train(tmp_path / "parts", total_steps, save=save, use_orbax=False)
    assert (tmp_path / "parts" / "checkpoint_4" / "checkpoint").is_file()
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(jax.device_get(a), jax.device_get(b)), whole, parts))


def test_hardware_rng_draws_other_dropout_for_the_same_parameters_and_resumes_exactly(tmp_path):
    options = {"use_hardware_rng": True, "run_eval_before_training": True}
    _, whole = _train(tmp_path / "hardware", 4, **options)
    _train(tmp_path / "software", 4, run_eval_before_training=True)
    before, after = (
        [_lines(tmp_path / name, "training_eval/a")[i]["loss"] for name in ("hardware", "software")] for i in (0, -1)
    )
    assert before[0] == before[1] and after[0] != after[1]
    for total_steps in (2, 4):
        _, parts = _train(tmp_path / "parts", total_steps, **options)
    assert jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(jax.device_get(a), jax.device_get(b)), whole, parts))


# -------------------------------------------------- T5X's hooks -------------------------------------------------------


class _DoublingTrainer(trainer.Trainer):
    """A trainer as T5X's users write them: all arguments by keyword, its own step around `train_with_lr`."""

    def __init__(
        self, model, train_state, partitioner, eval_names, summary_dir, train_state_axes, rng, factor, **others
    ):
        super().__init__(
            model=model, train_state=train_state, partitioner=partitioner, eval_names=eval_names,
            summary_dir=summary_dir, train_state_axes=train_state_axes, rng=rng, **others
        )  # fmt: skip
        self._factor = factor

    @functools.cached_property
    def _partitioned_train_step(self):
        axes, rows = self._train_state_axes, self._partitioner.data_partition_spec
        update = functools.partial(
            trainer.train_with_lr, model=self._model, num_microbatches=self._num_microbatches, data_partition_spec=rows
        )

        def doubled(state, examples):
            rate = self._learning_rate_fn(state.step) * self._factor
            return update(state, examples, rate, self._get_step_rng(state.step))

        return self._partitioner.partition(doubled, (axes, rows), (axes, None), donate_argnums=(0,))


class _ScaledModel(models.EncoderDecoderModel):
    """A model with a loss of its own, and a metric."""

    def loss_fn(self, params, batch, dropout_rng):
        loss, metrics = super().loss_fn(params, batch, dropout_rng)
        return loss / 2, metrics | {"half_loss": trainer.metrics_lib.AveragePerStep.from_model_output(loss / 2)}


def test_trainers_and_models_of_t5x_users(tmp_path):
    schedule = create_learning_rate_scheduler("constant", 0.005)
    plain = small.model(**small.TINY)
    model = _ScaledModel(
        plain.module, plain.input_vocabulary, plain.output_vocabulary, plain.optimizer_def, z_loss=1e-4
    )
    _train(
        tmp_path,
        2,
        model=model,
        trainer_cls=functools.partial(_DoublingTrainer, factor=2.0, learning_rate_fn=schedule, num_microbatches=2),
    )
    first, last = _lines(tmp_path, "train")
    assert last["learning_rate"] == pytest.approx(0.01)
    assert first["half_loss"] == pytest.approx((first["cross_ent_loss"] + first["z_loss"]) / 2)
    assert _lines(tmp_path, "training_eval/a")[0]["half_loss"] > 0


def test_injected_functions_are_called_as_t5x_calls_them(tmp_path):
    calls = {}

    def record(name, result=None):
        def function(*args, **kwargs):
            calls[name] = (args, kwargs)
            return result

        return function

    stream = small.Stream()
    config = DatasetConfig("counter", LENGTHS, "train", 8, seed=0)
    _train(
        tmp_path,
        1,
        train_dataset_cfg=config,
        eval_steps=1,
        summarize_config_fn=record("summarize"),
        get_dataset_fn=record("get", stream),
        train_eval_get_dataset_fn=record("get_eval", {"a": [small.batch(100)]}),
        verify_matching_vocabs_fn=record("verify"),
        prepare_train_iter_fn=record("prepare", stream),
    )
    assert calls["get"][0] == (config, 0, 1, "EncDecFeatureConverter")
    assert calls["get_eval"][0][1:] == (0, 1, 1, "EncDecFeatureConverter")
    assert calls["prepare"][0] == (stream,) and set(calls["prepare"][1]) == {"partitioner", "checkpoint_cfg"}
    assert isinstance(calls["verify"][0][1], models.EncoderDecoderModel)
    model_dir, writer, step = calls["summarize"][0]
    assert (model_dir, step) == (str(tmp_path), 0) and hasattr(writer, "write_texts")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"log_every": 0}, ["train.log_every is 0; it is a whole number of at least 1"]),
        ({"relative_steps": 0}, ["train.relative_steps (TRAIN_STEPS_RELATIVE) is 0"]),
        ({"random_seed": 1.5}, ["train.random_seed (RANDOM_SEED) is 1.5; it is a whole number of at least 0"]),
        ({"random_seed": "0"}, ["train.random_seed (RANDOM_SEED) is '0'"]),
        ({"random_seed": -1}, ["train.random_seed (RANDOM_SEED) is -1"]),
        ({"actions": {"INFER_EVAL": [_StopAt(1)]}}, ["INFER_EVAL", "infer_eval_dataset_cfg"]),
        ({"training_eval_average_metrics": {"mean/accuracy": ["a", "c"]}}, ["mean/accuracy", "['a', 'b']"]),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, options, words):
    with pytest.raises(ValueError) as error:
        _train(tmp_path, **options)
    for word in words:
        assert word in str(error.value)


def test_a_start_that_fails_closes_the_writers(tmp_path):
    closed = []

    class Writer(writers.JsonLinesWriter):
        def close(self):
            closed.append(self._file.name)
            super().close()

    def fails(*_):
        raise ValueError("no configuration")

    with pytest.raises(ValueError, match="INFER_EVAL"):  # which is found before they are opened
        _train(tmp_path, metric_writers=[Writer], actions={"INFER_EVAL": [_StopAt(1)]})
    assert closed == [] and list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="no configuration"):
        _train(tmp_path, metric_writers=[Writer], summarize_config_fn=fails)
    assert closed == [str(tmp_path / "metrics.jsonl")]


def test_the_folder_of_an_exported_model_is_no_model_dir(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=rf"MODEL_DIR {tmp_path} holds an exported model \(config.json\)"):
        _train(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_the_bar_s_time_left_does_not_count_the_step_that_compiled(monkeypatch):
    now = [1000.0]
    figures = lambda: {"loss": 1.0}  # noqa: E731
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    left = progress.TimeLeft(111, {"evaluation": lambda step: 2})
    with progress.ProgressBar(total_steps=111, first_step=10, tokens_per_step=10, time_left=left) as bar:
        bar._bar._time = lambda: now[0]
        bar._bar.start_t = bar._bar.last_print_t = now[0]
        now[0] += 60.0
        bar.step(figures, None)
        assert bar._bar.n == 11 and bar._bar.format_dict["elapsed"] == 0.0
        with bar.paused("evaluation"):
            now[0] += 100.0
        for _ in range(20):
            now[0] += 1.0
            bar.step(figures, figures)
        shown = str(bar._bar)
    assert "31/111 [00:20<04:40, " in shown, shown  # 80 steps and two evaluations


def test_a_log_has_plain_lines_of_steps(monkeypatch, caplog):
    now = [1000.0]
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def lines(log_every, total, seconds, ends_at=None):
        caplog.clear()
        with progress.show(total, 10, 600, log_every, {}) as shown:
            for step in range(11, (ends_at or total) + 1):
                now[0] += seconds
                figures = {"loss": step / 10, "learning rate": 0.0125}
                shown.step(lambda figures=figures: figures, (lambda: pytest.fail("too early")) if step > 11 else None)
                with shown.paused():
                    now[0] += 100.0
        return caplog.messages

    caplog.set_level(logging.INFO)
    assert lines(5, 17, 2.0) == [
        "step 11/17: loss 1.100, learning rate 0.0125",
        "step 15/17: loss 1.500, learning rate 0.0125, 2 s/step, 300 tokens/s, 00:04 left",
        "step 17/17: loss 1.700, learning rate 0.0125, 2 s/step, 300 tokens/s, 00:00 left",
    ]
    assert lines(100, 150, 0.25, ends_at=20)[1:] == ["step 20/150"]  # a stop, or an error
    # About every 15 seconds at round numbers of steps.
    assert [line.split("/")[0] for line in lines(None, 1010, 0.1)] == [
        f"step {x}" for x in (11, 200, 400, 600, 800, 1000, 1010)
    ]
    assert [line.split("/")[0] for line in lines(None, 19, 9.0)] == [f"step {x}" for x in (11, 12, 14, 16, 18, 19)]


@pytest.mark.parametrize("eval_steps", [1, 2])
def test_the_first_batch_is_timed(eval_steps, monkeypatch):
    clock = types.SimpleNamespace(now=100.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(periodic_evaluation, "time", clock)
    counted = periodic_evaluation._CountedBatches([KeptBatch({}, np.zeros(1), (2, 3))] * 3, 1, lambda: None)
    for step, _ in enumerate(itertools.islice(counted, eval_steps)):
        clock.now += 2.0 if step == 0 else 30.0
    assert counted.first_seconds == 2.0


def test_losses_and_epochs_of_tasks_are_written_beside_the_whole(tmp_path):
    class Mixture(small.Stream):
        task_groups = {"a": [0], "b": [1]}

        def __next__(self):
            return super().__next__() | {"example_tasks": np.eye(2, dtype=np.int32)[[0, 1, 1, 1, 1, 1, 1, 1]]}

        def epochs(self):
            return {"a": 0.25, "b": self.next / 2}

    _train(tmp_path, 2, get_dataset_fn=lambda *_: Mixture())
    for line, epochs in zip(_lines(tmp_path, "train"), (0.5, 1.0), strict=True):
        tokens = {name: line[f"target_tokens/{name}"] for name in "ab"}
        whole = sum(line[f"loss/{name}"] * tokens[name] for name in "ab") / sum(tokens.values())
        assert line["loss_per_nonpadding_target_token"] == pytest.approx(whole, rel=1e-5)
        assert (tokens["a"], line["epochs/a"], line["epochs/b"]) == (8, 0.25, epochs)
    assert {"loss/a", "target_tokens/a", "epochs/b"} <= set(event_files.read_tags(tmp_path / "train"))


# ------------------------------------------------- what goes wrong ---------------------------------------------------


class _BreaksAt(small.Stream):
    """A stream that fails, once it has waited for something, when batch `broken_at` is asked for."""

    def __init__(self, broken_at, wait=lambda: None):
        super().__init__(broken_at=broken_at)
        self.wait = wait

    def __next__(self):
        if self.next == self.broken_at:
            self.wait()
            raise RuntimeError("Shard 7 cannot be read")
        return super().__next__()


def test_what_was_trained_before_the_data_broke_is_saved(tmp_path):
    _train(tmp_path / "whole", total_steps=4)
    with pytest.raises(RuntimeError, match="Shard 7 cannot be read"):
        _train(tmp_path / "broken", total_steps=4, get_dataset_fn=lambda *_: _BreaksAt(3))
    assert checkpointing.checkpoint_steps(tmp_path / "broken") == [3]
    _train(tmp_path / "broken", total_steps=4)
    losses = [[line["loss"] for line in _lines(tmp_path / run, "train")] for run in ("whole", "broken")]
    assert len(losses[0]) == 4 and losses[0] == losses[1]


@pytest.mark.parametrize(("at", "saved"), [(0, []), (2, [2])])
def test_a_run_that_waits_for_data_in_vain_saves_and_ends(tmp_path, monkeypatch, caplog, at, saved):
    ended, is_over = [], threading.Event()
    monkeypatch.setattr(watchdog, "_cpu_seconds", lambda: 0.0)  # whatever threads of other tests do

    def end(code):
        ended.append(code)
        is_over.set()

    make = watchdog.Watchdog
    monkeypatch.setattr(watchdog, "Watchdog", lambda *given: make(*given[:-1], end, grace_seconds=0.2))
    config = watchdog.WatchdogConfig(report_factor=1.0, report_seconds=0.2, end_seconds=0.5)
    with pytest.raises(RuntimeError, match="Shard 7 cannot be read"):
        _train(tmp_path, get_dataset_fn=lambda *_: _BreaksAt(at, lambda: is_over.wait(60)), watchdog_cfg=config)
    assert ended == [watchdog.HUNG_EXIT_CODE]
    assert checkpointing.checkpoint_steps(tmp_path) == saved
    assert ("No batch came for step 3; step 2 is saved." in caplog.text) == bool(saved)
    assert f"Step {at + 1} has taken" in caplog.text and "in __next__" in caplog.text


def test_goodput_is_written_and_goes_on_after_a_restart(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    _train(tmp_path, total_steps=4)
    assert "goodput " in caplog.text and ", 1 start:" in caplog.text
    first = _lines(tmp_path, "train")[-1]
    _train(tmp_path, total_steps=6)
    assert ", 2 starts:" in caplog.text
    last = _lines(tmp_path, "train")[-1]
    for kind in ("start", "compile", "step", "evaluation"):
        assert last[f"goodput/{kind}_seconds"] > first[f"goodput/{kind}_seconds"] > 0
    assert last["goodput/restart_seconds"] > 0 == last["goodput/lost_seconds"]
    seconds = {kind: last[f"goodput/{kind}_seconds"] for kind in goodput.KINDS}
    assert last["goodput/fraction"] == pytest.approx(seconds["step"] / sum(seconds.values()))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("factor", "num_microbatches"),
    [(None, 1), (100.0, 2), ("NUM_REAL_TARGET_TOKENS", 1), ("NUM_REAL_TARGET_TOKENS", 2)],
)
def test_the_loss_is_that_of_a_target_token(factor, num_microbatches):
    model = small.model(loss_normalizing_factor=factor, **small.TINY)
    trainer = small.make_trainer(model, num_microbatches=num_microbatches)
    _, measured = trainer.train_step(
        trainer.new_state(jax.random.key(0)), trainer.partitioner.shard_batch(small.batch(0))
    )
    twice = metrics.compute(metrics.add(measured, measured))
    weights = small.batch(0)["decoder_loss_weights"].sum()
    divisor = 1 if factor == "NUM_REAL_TARGET_TOKENS" else weights / (factor or 1)
    assert twice["loss"] == pytest.approx((twice["cross_ent_loss"] + twice["z_loss"]) / divisor, rel=1e-5)
    assert twice["num_target_tokens"] == 2 * weights and metrics.MEAN not in twice
    assert loop.shown_figures(measured) == pytest.approx(
        {"loss": twice["loss"], "learning rate": twice["learning_rate"]}
    )
    of_users = {"loss": metrics.per_step(3.0), "loss_per_nonpadding_target_token": metrics.Ratio(3.0, 12.0)}
    assert loop.shown_figures(of_users) == {"loss": 0.25}
