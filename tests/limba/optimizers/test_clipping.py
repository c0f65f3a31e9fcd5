import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.optimizers import adafactor, definitions, freezing
from limba.optimizers.clipping import ClippedOptimizer

PARAMS = {"a": jnp.ones(2), "b": jnp.ones(2)}
GRADS = {"a": jnp.array([3.0, -0.5]), "b": jnp.array([0.0, 4.0])}


def _update(definition):
    return definition.update(GRADS, definition.init(PARAMS), PARAMS, learning_rate=jnp.float32(0.1), step=jnp.int32(0))[
        0
    ]


@pytest.mark.parametrize(
    ("bounds", "clipped"),
    [
        ({"max_value": 1.0}, {"a": [1.0, -0.5], "b": [0.0, 1.0]}),
        ({"max_norm": 100.0}, GRADS),
        ({"max_norm": 1.0}, {name: g / np.sqrt(25.25) for name, g in GRADS.items()}),
        # By value first: the norm is then 1.5.
        ({"max_value": 1.0, "max_norm": 0.75}, {"a": [0.5, -0.25], "b": [0.0, 0.5]}),
    ],
)
def test_gradients_are_clipped(bounds, clipped):
    updates = _update(ClippedOptimizer(definitions.sgd(), **bounds))
    jax.tree.map(lambda u, g: np.testing.assert_allclose(u, -0.1 * np.asarray(g), rtol=1e-6), updates, dict(clipped))


def test_any_optimizer_keeps_its_state_and_what_it_knows():
    plain = adafactor.Adafactor(factored=False, skip_nan_updates=True)
    clipped = ClippedOptimizer(plain, max_value=0.5)
    assert jax.tree.structure(clipped.init(PARAMS)) == jax.tree.structure(plain.init(PARAMS))
    assert clipped.skip_nan_updates
    # Adafactor's first step is a sign wherever there is a gradient; the statistics differ.
    assert np.all(np.isfinite(_update(clipped)["a"]))
    partial = ClippedOptimizer(freezing.PartialOptimizer(definitions.adamw(), frozen=["/a"]), max_norm=1.0)
    assert freezing.count_trained(partial, PARAMS) == (2, 4)
    np.testing.assert_array_equal(_update(partial)["a"], [0.0, 0.0])


@pytest.mark.parametrize(
    ("bounds", "words"),
    [({}, "needs max_norm or max_value"), ({"max_norm": 0.0}, "max_norm is 0"), ({"max_value": -1}, "max_value is -1")],
)
def test_bounds_that_are_none(bounds, words):
    with pytest.raises(ValueError, match=words):
        ClippedOptimizer(definitions.sgd(), **bounds)
