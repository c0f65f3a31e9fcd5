"""The running average of the parameters, against loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from limba.optimizers import adafactor, definitions, freezing
from limba.optimizers.averaging import AveragedOptimizer, decay_at
from limba.optimizers.clipping import ClippedOptimizer

PARAMS = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([[3.0, -4.0]])}


def _train(definition, updates, params=PARAMS):
    """The parameters after each update, and the last state."""
    state, history = definition.init(params), [params]
    for step in range(updates):
        grads = jax.tree.map(lambda p, step=step: jnp.cos(p + step), params)
        changes, state = definition.update(grads, state, params, learning_rate=jnp.float32(0.1), step=jnp.int32(step))
        params = jax.tree.map(lambda p, u: p + u, params, changes)
        history.append(params)
    return history, state


@pytest.mark.parametrize(
    "optimizer",
    [adafactor.Adafactor, definitions.adamw, lambda: optax.sgd(1.0), lambda: ClippedOptimizer(optax.sgd(1.0), 1.0)],
    ids=["adafactor", "adamw", "optax", "clipped"],
)
def test_the_average_is_that_of_a_loop_and_the_parameters_are_those_without_it(optimizer):
    history, state = _train(AveragedOptimizer(optimizer(), decay=0.3), 5)
    expected = {name: np.asarray(x, np.float64) for name, x in PARAMS.items()}
    for t, params in enumerate(history[1:], start=1):
        kept = min(0.3, (1 + t) / (10 + t))  # 2/11, 3/12, 4/13, 0.3, 0.3
        for name in expected:
            expected[name] = kept * expected[name] + (1 - kept) * np.asarray(params[name], np.float64)
    for name in expected:
        np.testing.assert_allclose(state.average[name], expected[name], rtol=1e-6)
    assert int(state.updates) == 5
    plain_history, plain_state = _train(definitions.as_optimizer_def(optimizer()), 5)
    for with_average, without in ((history[-1], plain_history[-1]), (state.optimizer, plain_state)):
        jax.tree.map(np.testing.assert_array_equal, with_average, without)


def test_the_decay_rises_to_its_limit():
    np.testing.assert_allclose(
        [decay_at(0.99, t) for t in (1, 8, 80, 890, 900, 10**6)], [2 / 11, 0.5, 0.9, 891 / 900, 0.99, 0.99], rtol=1e-6
    )
    # What is left of the beginning after 20 updates: 10! 21! / 30!.
    left = np.prod([decay_at(0.999, t) for t in range(1, 21)], dtype=np.float64)
    np.testing.assert_allclose(left, 6.9895e-7, rtol=1e-4)


def test_frozen_parameters_are_not_kept_twice():
    partial = AveragedOptimizer(freezing.PartialOptimizer(definitions.adamw(), frozen=["/a"]))
    history, state = _train(partial, 2)
    assert list(state.average) == ["b"]
    np.testing.assert_array_equal(history[-1]["a"], PARAMS["a"])
    assert freezing.count_trained(partial, PARAMS) == (2, 4)


@pytest.mark.parametrize("decay", [0, 1.0, -0.5, "0.9", True, float("nan")])
def test_a_decay_that_is_none(decay):
    with pytest.raises(ValueError, match=r"AveragedOptimizer.decay is .*; it is a number above 0 and below 1, such as"):
        AveragedOptimizer(optax.sgd(1.0), decay=decay)


def test_an_average_inside_of_another_optimizer_is_refused():
    inside = AveragedOptimizer(optax.sgd(1.0))
    with pytest.raises(ValueError, match=r"PartialOptimizer holds an averaging\.AveragedOptimizer; bind it the other"):
        freezing.PartialOptimizer(inside)
    with pytest.raises(ValueError, match=r"AveragedOptimizer holds an averaging\.AveragedOptimizer"):
        AveragedOptimizer(ClippedOptimizer(inside, max_norm=1.0))
