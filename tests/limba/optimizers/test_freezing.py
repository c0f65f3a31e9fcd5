import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from limba.optimizers import adafactor, definitions, freezing
from limba.optimizers.freezing import PartialOptimizer

PARAMS = {
    "encoder": {"mlp": {"kernel": jnp.ones((4, 4))}, "norm": {"scale": jnp.ones(4)}},
    "decoder": {"mlp": {"kernel": jnp.ones((4, 4))}},
}


def _updated(definition):
    grads = jax.tree.map(jnp.ones_like, PARAMS)
    state = definition.init(PARAMS)
    updates, _ = definition.update(grads, state, PARAMS, learning_rate=jnp.float32(0.1), step=jnp.int32(0))
    changed = {"/".join(path) for path, x in traverse_util.flatten_dict(updates).items() if np.any(x)}
    return changed, state


@pytest.mark.parametrize(
    ("choice", "trained"),
    [
        ({"frozen": ["/encoder/.*"]}, {"decoder/mlp/kernel"}),
        ({"trained": [".*/kernel"]}, {"encoder/mlp/kernel", "decoder/mlp/kernel"}),
        ({"trained": ["/encoder/.*"], "frozen": [".*/scale"]}, {"encoder/mlp/kernel"}),
    ],
)
@pytest.mark.parametrize("make", [definitions.adamw, lambda: adafactor.Adafactor(factored=False)])
def test_frozen_parameters_get_no_update_and_no_state(make, choice, trained):
    definition = PartialOptimizer(make(), **choice)
    changed, state = _updated(definition)
    assert changed == trained
    sizes = sum(x.size for x in jax.tree.leaves(state) if x.shape == (4, 4))
    assert sizes == 16 * len(trained) * (2 if make is definitions.adamw else 1)
    counted = freezing.count_trained(definition, PARAMS)
    assert counted == (16 * len(trained), 36)
    assert freezing.count_trained(make(), PARAMS) == (36, 36)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"frozen": ["encoder/.*"]}, ["PartialOptimizer.frozen", "'encoder/.*'", "slash", "/encoder/mlp/kernel"]),
        ({"frozen": ["/decoder/mlp/krnel"]}, ["'/decoder/mlp/krnel'", "the nearest are /decoder/mlp/kernel"]),
        ({"trained": ["/encoder/mlp"]}, ["PartialOptimizer.trained", "/encoder/mlp/kernel"]),
        ({"frozen": ["/.*"]}, ["['/.*'] leave no parameter"]),
        ({"trained": []}, ["PartialOptimizer.trained = [] and frozen = []"]),
        ({"frozen": "/encoder/.*"}, ["PartialOptimizer.frozen is '/encoder/.*'", "a list"]),
        ({"frozen": ["/(.*"]}, ["PartialOptimizer.frozen", "'/(.*'", "not a regular expression"]),
    ],
)
def test_expressions_that_match_nothing_name_the_nearest(choice, words):
    with pytest.raises(ValueError) as error:
        PartialOptimizer(definitions.sgd(), **choice).init(PARAMS)
    for word in words:
        assert word in str(error.value)
