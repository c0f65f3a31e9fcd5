import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from limba.optimizers import adafactor
from limba.optimizers.averaging import AveragedOptimizer
from limba.optimizers.outliers import SkipOutliers
from limba.training import trainer
from tests.limba import small

OPTIMIZERS = [optax.adam(1.0), adafactor.Adafactor(min_dim_size_to_factor=2)]


def _steps(optimizer, norms, state=None):
    """The states after updates of one parameter [2, 3] with gradients of those norms."""
    params = {"w": jnp.array([[1.0, -0.0, 2.0], [0.5, 3.0, -1.0]])}
    state = optimizer.init(params) if state is None else state
    states, update = [], jax.jit(optimizer.update)
    for step, norm in enumerate(norms):
        grads = {"w": jnp.full((2, 3), norm / 6**0.5, jnp.float32)}
        updates, state = update(grads, state, params, learning_rate=jnp.float32(0.1), step=jnp.int32(step))
        params = jax.tree.map(lambda p, u: p + u, params, updates)
        states.append((params, state))
    return states


def _bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


@pytest.mark.parametrize("inner", OPTIMIZERS)
def test_an_outlier_changes_neither_parameters_nor_the_optimizer_s_state(inner):
    optimizer = SkipOutliers(inner, factor=5.0, window=4, least=3)
    states = _steps(optimizer, [1.0, 2.0, 3.0, 10.1, 9.9])  # the median of 1, 2 and 3 is 2
    before, after = states[2], states[3]
    assert _bits(before[0]) == _bits(after[0]) and _bits(before[1]["optimizer"]) == _bits(after[1]["optimizer"])
    assert _bits(before[1]["norms"]) == _bits(after[1]["norms"])
    assert int(after[1]["skipped"]) == 1
    # 9.9 is no outlier: the same state as without the step in between.
    without = _steps(optimizer, [1.0, 2.0, 3.0])[-1]
    assert _bits(without[1]["optimizer"]) == _bits(before[1]["optimizer"])
    assert _bits(states[4][0]) != _bits(before[0]) and int(states[4][1]["skipped"]) == 1


def test_a_negative_zero_stays_one():
    states = _steps(SkipOutliers(optax.sgd(1.0), window=2, least=1), [1e-30, 1.0])
    assert np.signbit(np.asarray(states[1][0]["w"])[0, 1]) == np.signbit(np.asarray(states[0][0]["w"])[0, 1])
    assert _bits(states[0][0]) == _bits(states[1][0])


def test_gradients_that_have_grown_for_good_count_after_some_steps():
    states = _steps(SkipOutliers(optax.sgd(1.0), factor=2.0, window=3, least=2, most_in_a_row=3), [1, 1, *[9] * 8])
    # Three are left out, then one counts; with 1, 1, 9 the median is 1, so three more; with 9 of three it is 9.
    assert [int(state["skipped"]) for _, state in states] == [0, 0, 1, 2, 3, 3, 4, 5, 6, 6]
    np.testing.assert_array_equal(np.sort(states[-1][1]["norms"]), np.float32([1, 9, 9]))


def test_norms_that_are_not_numbers_are_left_out():
    states = _steps(SkipOutliers(optax.sgd(1.0), window=2, least=1), [1.0, float("nan"), float("inf")])
    assert [int(state["skipped"]) for _, state in states] == [0, 1, 2]
    assert np.isfinite(states[-1][0]["w"]).all()


def test_a_run_trains_with_it_on_two_devices_and_counts_in_its_metrics():
    model = small.model(AveragedOptimizer(SkipOutliers(adafactor.Adafactor())), **small.TINY)
    made = trainer.Trainer(
        model, small.partitioner(2), small.schedules.create_learning_rate_scheduler("constant", 0.01)
    )
    state = made.new_state(jax.random.key(0))
    batch = made.partitioner.shard_batch(small.batch(0))
    state, metrics = made.train_step(state, batch)
    assert float(metrics["skipped_updates"].compute()) == 0.0
    tree = state.state_dict()["state"]["param_states"]
    assert tree["norms"].shape == (128,) and tree["seen"] == 1 and "decoder" in tree["optimizer"]


@pytest.mark.parametrize("fields", [{"factor": 1.0}, {"least": 0}, {"least": 200}, {"most_in_a_row": 0}])
def test_values_that_cannot_be_meant_are_refused(fields):
    with pytest.raises(ValueError, match="SkipOutliers"):
        SkipOutliers(optax.sgd(1.0), **fields)
