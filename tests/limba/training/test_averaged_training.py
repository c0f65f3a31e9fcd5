"""An average of the parameters in a training: evaluated, saved, restored, begun and dropped."""

import dataclasses
import functools
import logging

import jax
import numpy as np
import pytest

from limba.checkpoint_files import saved_tensors
from limba.checkpoints import checkpointing
from limba.checkpoints.checkpointing import RestoreCheckpointConfig
from limba.checkpoints.train_state import TrainState
from limba.optimizers import adafactor
from limba.optimizers.averaging import AveragedOptimizer
from limba.reports import writers
from limba.train import train
from tests.limba import small

DECAY = 0.3


def _adafactor():
    return adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules())


@functools.cache
def _model(averages: bool, make=_adafactor):
    optimizer = make()
    return small.model(AveragedOptimizer(optimizer, DECAY) if averages else optimizer, **small.TINY)


def _train(model_dir, total_steps=4, model=None, **options):
    arguments = small.training(model_dir, total_steps) | {
        "model": model or _model(True),
        "checkpoint_cfg": checkpointing.CheckpointConfig(save=checkpointing.SaveCheckpointConfig(period=1)),
        "train_eval_get_dataset_fn": lambda *_: {"counter": [small.batch(100), small.batch(101)]},
    }
    return train(**(arguments | options))[1]


def _saved(run, step):
    tensors = saved_tensors.open_tensors(checkpointing.checkpoint_path(run, step))
    return {name: np.asarray(tensor) for name, tensor in tensors.items()}


def _of_checkpoint(tensors, folder):
    return {name.removeprefix(folder): x for name, x in tensors.items() if name.startswith(folder)}


def _equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of four steps, with its average."""
    run = tmp_path_factory.mktemp("average") / "run"
    return run, _train(run)


def test_a_resumed_run_has_the_same_average_to_the_last_bit(whole, tmp_path):
    _train(tmp_path / "run", 2)
    state = _train(tmp_path / "run", 4)
    _equal(state, whole[1])
    expected = _saved(whole[0], 4)
    for name, x in _saved(tmp_path / "run", 4).items():
        np.testing.assert_array_equal(x, expected[name], err_msg=name)


def test_an_average_that_is_switched_on_begins_from_the_restored_parameters(whole, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    plain = _train(tmp_path / "run", 2, model=_model(False))
    path = checkpointing.checkpoint_path(tmp_path / "run", 2)
    trainer = small.SharedTrainer(model=_model(True), partitioner=small.partitioner())
    begun = checkpointing.load_state(path, trainer.sharded_state_shapes())
    assert f"{path} has no average of the parameters: it begins from the parameters of this checkpoint." in caplog.text
    _equal(begun.params, plain.params)
    _equal(begun.opt_state.average, plain.params)
    _equal(begun.opt_state.optimizer, plain.opt_state)
    assert int(begun.opt_state.updates) == 0
    caplog.clear()
    averaged = checkpointing.checkpoint_path(whole[0], 4)
    reset = checkpointing.RestoreCheckpointConfig(str(averaged), reset=["optimizer"])
    plain_state = trainer.new_state(jax.random.key(0))
    new = checkpointing.load_state(averaged, trainer.sharded_state_shapes(), reset, lambda: plain_state)
    assert f"{averaged} gives no average, which is reset with the optimizer: it begins from" in caplog.text
    _equal(new.opt_state.average, whole[1].params)
    _train(tmp_path / "run", 3)
    before, after = (_of_checkpoint(_saved(tmp_path / "run", step), "target/") for step in (2, 3))
    for name, x in _of_checkpoint(_saved(tmp_path / "run", 3), "state/average/parameters/").items():
        expected = before[name] + (1 - 2 / 11) * (after[name] - before[name])  # the first update of the average
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-7, err_msg=name)


def test_an_average_that_is_switched_off_is_dropped(whole, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = checkpointing.checkpoint_path(whole[0], 4)
    trainer = small.SharedTrainer(model=_model(False), partitioner=small.partitioner())
    state = checkpointing.load_state(path, trainer.sharded_state_shapes())
    assert f"{path} has an average of the parameters, and the optimizer keeps none" in caplog.text
    assert "it is dropped" in caplog.text
    _equal(state.params, whole[1].params)
    _equal(state.opt_state, whole[1].opt_state.optimizer)


def test_the_average_is_restored_in_the_place_of_the_parameters(whole):
    run, state = whole
    plain = small.SharedTrainer(model=_model(False), partitioner=small.partitioner())
    shapes, average = plain.sharded_state_shapes(), RestoreCheckpointConfig(average=True)
    _equal(checkpointing.load_sharded_params(str(run), shapes.params, average), state.opt_state.average)
    # A training may begin there.
    path = checkpointing.checkpoint_path(run, 4)
    _equal(checkpointing.load_state(path, shapes, average).params, state.opt_state.average)
    own = small.SharedTrainer(model=_model(True), partitioner=small.partitioner())
    scratch = functools.partial(own.initializer.new_state, jax.random.key(0))
    for config, expected in ((average, state.opt_state.average), (RestoreCheckpointConfig(), state.params)):
        new = dataclasses.replace(config, reset=["optimizer"])
        begun = checkpointing.load_state(path, own.sharded_state_shapes(), new, scratch)
        _equal(begun.params, expected)
        _equal(begun.opt_state.average, expected)
        assert int(begun.opt_state.updates) == 0


def test_a_run_without_an_average_has_none_to_restore(tmp_path):
    _train(tmp_path, 1, model=_model(False))
    shapes = small.SharedTrainer(model=_model(False), partitioner=small.partitioner()).sharded_state_shapes()
    with pytest.raises(ValueError, match=r"checkpoint_1 has no average of the parameters: .*gin/runs/average.gin"):
        checkpointing.load_sharded_params(str(tmp_path), shapes.params, RestoreCheckpointConfig(average=True))


# ------------------------------------------------------ evaluation --------------------------------------------------


def test_each_evaluation_is_made_for_the_average_too_and_compiles_nothing(whole, tmp_path, caplog):
    state = whole[1]
    caplog.set_level(logging.INFO)
    trainers = []

    def make(**arguments):
        trainers.append(small.SharedTrainer(**arguments))
        return trainers[-1]

    model = small.model(AveragedOptimizer(_adafactor(), DECAY), **small.TINY)  # whose steps nothing has compiled yet
    _train(tmp_path / "run", model=model, trainer_cls=make)
    assert trainers[0]._partitioned_eval_step.__wrapped__._cache_size() == 1
    by_folder = {}
    for line in writers.read_metrics(tmp_path / "run", "training_eval/"):
        by_folder.setdefault(line["dataset"], []).append(line)
    raw, average = by_folder["training_eval/counter"], by_folder["training_eval/counter_average"]
    assert [line["step"] for line in raw] == [line["step"] for line in average] == [2, 4]
    assert "timing/compilation_seconds" in raw[0]
    assert "timing/compilation_seconds" not in average[0]
    # By hand: the model's loss with the saved average.
    plain = small.SharedTrainer(model=_model(False), partitioner=small.partitioner())
    of_average = TrainState(step=state.step, params=state.opt_state.average, opt_state=state.opt_state.optimizer)
    of_raw = TrainState(step=state.step, params=state.params, opt_state=state.opt_state.optimizer)
    for given, line in ((of_raw, raw[-1]), (of_average, average[-1])):
        metrics = [plain.eval_step(given, small.batch(seed))["nats_per_target_token"] for seed in (100, 101)]
        expected = sum(float(x.total) for x in metrics) / sum(float(x.count) for x in metrics)
        np.testing.assert_allclose(line["nats_per_target_token"], expected, rtol=1e-6)
    assert raw[-1]["nats_per_target_token"] != average[-1]["nats_per_target_token"]
    shown = (
        f"step 4: counter, average of the parameters (training_eval): {average[-1]['nats_per_target_token']:.4f} nats"
    )
    assert shown in caplog.text
    assert list((tmp_path / "run/training_eval/counter_average").glob("events.out.tfevents.*"))


def test_a_mean_over_tasks_may_not_have_the_name_of_an_average(tmp_path):
    with pytest.raises(ValueError, match="names 'counter_average', where the metrics of the average"):
        _train(tmp_path, training_eval_average_metrics={"counter_average/accuracy": ["counter"]})


# ---------------------------------------------------- other optimizers ----------------------------------------------


def test_on_two_devices_the_average_is_sharded_as_its_parameters(whole, tmp_path):
    two = small.partitioner(2, num_partitions=2)
    state = _train(tmp_path / "run", 2, partitioner=two, train_eval_dataset_cfg=None)
    shardings = jax.tree.map(lambda x: x.sharding, state.params)
    assert jax.tree.map(lambda x: x.sharding, state.opt_state.average) == shardings
    split = [s for s in jax.tree.leaves(shardings) if "model" in jax.tree.leaves(tuple(s.spec))]
    assert split, "no parameter is split over the mesh"
    one, average = _saved(whole[0], 2), "state/average/parameters/"
    for name, x in _of_checkpoint(_saved(tmp_path / "run", 2), average).items():
        np.testing.assert_allclose(x, one[average + name], rtol=2e-3, atol=2e-5, err_msg=name)
