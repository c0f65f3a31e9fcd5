import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.checkpoints import checkpointing
from limba.checkpoints.checkpointing import CheckpointMismatchError, RestoreCheckpointConfig
from limba.checkpoints.train_state import TrainState


def _state(step, **params):
    params = {name: jnp.full((2,), value, jnp.float32) for name, value in params.items()}
    return TrainState(
        step=jnp.int32(step), params=params, opt_state={name: {"m": x * 10} for name, x in params.items()}
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of step 7 with the parameter `kernel` of ones, and its statistics."""
    directory = tmp_path_factory.mktemp("run")
    checkpointer = checkpointing.Checkpointer(directory, checkpointing.SaveCheckpointConfig())
    checkpointer.save(_state(7, kernel=1.0), None, {})
    checkpointer.close()
    return directory / "checkpoint_7"


def _load(path, new, **config):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), new)
    return checkpointing.load_state(path, shapes, RestoreCheckpointConfig(**config), lambda: new)


@pytest.mark.parametrize(
    ("reset", "step", "statistic"),
    [((), 7, 10.0), (["step"], 0, 10.0), (["optimizer"], 7, 50.0), (["step", "optimizer"], 0, 50.0)],
)
def test_step_and_optimizer_are_reset_at_will(saved, reset, step, statistic):
    state = _load(saved, _state(0, kernel=5.0), reset=reset)
    assert int(state.step) == step
    np.testing.assert_array_equal(state.params["kernel"], [1.0, 1.0])
    np.testing.assert_array_equal(state.opt_state["kernel"]["m"], [statistic] * 2)


def test_inference_hears_nothing_of_an_optimizer(saved, caplog):
    caplog.set_level("INFO", logger="limba")
    _load(saved, TrainState(jnp.int32(0), {"kernel": jnp.zeros(2)}, {}), reset=["optimizer"], strict=False)
    assert "the optimizer state is initialized" not in caplog.text
    _load(saved, _state(0, kernel=5.0), reset=["optimizer"])
    assert "the optimizer state is initialized" in caplog.text


def test_only_what_is_named_may_be_missing(saved):
    new = _state(0, kernel=5.0, lora_a=6.0)
    state = _load(saved, new, initialize=["target/lora_[ab]"], reset=["optimizer"])
    np.testing.assert_array_equal(state.params["kernel"], [1.0, 1.0])
    np.testing.assert_array_equal(state.params["lora_a"], [6.0, 6.0])
    with pytest.raises(CheckpointMismatchError, match=r"target/other: missing.*\.reset = \['optimizer'\]"):
        _load(saved, _state(0, kernel=5.0, lora_a=6.0, other=7.0), initialize=["target/lora_a"], reset=["optimizer"])
    with pytest.raises(ValueError, match="initialize has 'target/lora_b', which matches no tensor of the model"):
        _load(saved, new, initialize=["target/lora_b"])


def test_adapters_are_to_be_merged_first(tmp_path):
    checkpointer = checkpointing.Checkpointer(tmp_path, checkpointing.SaveCheckpointConfig())
    checkpointer.save(_state(7, kernel=1.0, lora_a=2.0), None, {})
    checkpointer.close()
    with pytest.raises(
        CheckpointMismatchError, match=r"lora_a: not in .* LoRA's factors; `limba convert to-t5x` merges them"
    ):
        _load(tmp_path / "checkpoint_7", _state(0, kernel=5.0))


@pytest.mark.parametrize("reset", [["optimiser"], "step"])
def test_what_cannot_be_reset(reset):
    with pytest.raises(ValueError, match=r"reset is .*give a list of some of"):
        RestoreCheckpointConfig(reset=reset)


def test_parts_of_a_pretraining_are_left_out_and_said(saved, tmp_path, caplog):
    """Those of replaced-token detection: a plain T5 starts from such a checkpoint, and such a T5 from a plain one."""
    part = {"generator": jnp.full((2,), 3.0)}
    both = {"kernel": jnp.ones(2), "replaced_token_detection": part}
    state = TrainState(jnp.int32(7), both, {"mu": jax.tree.map(lambda x: x * 10, both)})
    checkpointer = checkpointing.Checkpointer(tmp_path, checkpointing.SaveCheckpointConfig())
    checkpointer.save(state, None, {})
    checkpointer.close()
    plain = TrainState(jnp.int32(0), {"kernel": jnp.zeros(2)}, {"mu": {"kernel": jnp.zeros(2)}})
    with caplog.at_level("INFO", logger="limba"):
        loaded = _load(tmp_path / "checkpoint_7", plain)
    assert "what only replaced-token detection needs (1 tensors) is left out" in caplog.text
    np.testing.assert_array_equal(loaded.params["kernel"], [1.0, 1.0])
    np.testing.assert_array_equal(loaded.opt_state["mu"]["kernel"], [10.0, 10.0])

    caplog.clear()
    with caplog.at_level("INFO", logger="limba"):
        again = _load(tmp_path / "checkpoint_7", state.replace(params=jax.tree.map(jnp.zeros_like, both)))
    assert "left out" not in caplog.text
    np.testing.assert_array_equal(again.params["replaced_token_detection"]["generator"], [3.0, 3.0])

    new = TrainState(jnp.int32(0), both, {name: {"m": jax.tree.map(lambda x: x * 5, x)} for name, x in both.items()})
    with caplog.at_level("INFO", logger="limba"):
        begun = _load(saved, new)
    assert "2 tensors are new and initialized, such as target/replaced_token_detection/generator" in caplog.text
    np.testing.assert_array_equal(begun.opt_state["kernel"]["m"], [10.0, 10.0])
    np.testing.assert_array_equal(begun.opt_state["replaced_token_detection"]["m"]["generator"], [15.0, 15.0])
