import jax.numpy as jnp
import numpy as np
import pytest

from limba.checkpoints.train_state import TrainState
from limba.training.trainer import WeightMetricsComputer

# T5X's WeightMetricsComputer on the trees below.
T5X = {
    "weight_rms/a/kernel": 0.6302088499069214,
    "weight_rms/b/scale": 0.4819829761981964,
    "weight_gradient_rms/a/kernel": 1.0460644960403442,
    "weight_gradient_rms/b/scale": 0.49995771050453186,
    "weight_gradient_norm": 3.7922024726867676,
    "weight_update_rms/a/kernel": 1.0367028713226318,
    "weight_update_rms/b/scale": 1.0220541954040527,
    "weight_update_divided_by_weight_rms/a/kernel": 5.769828796386719,
    "weight_update_divided_by_weight_rms/b/scale": 1.035718321800232,
    "weight_max/a/kernel": 1.3031572103500366,
    "weight_max/b/scale": 0.7364540696144104,
}


def _tree(seed):
    rng = np.random.default_rng(seed)
    kernel, scale = rng.normal(size=(3, 4)), rng.normal(size=5)
    return {"a": {"kernel": jnp.asarray(kernel, jnp.float32)}, "b": {"scale": jnp.asarray(scale, jnp.float32)}}


def test_names_and_numbers_are_those_of_t5x():
    old, new = (TrainState(jnp.int32(step), _tree(step), {}) for step in (0, 1))
    metrics = WeightMetricsComputer().compute_metrics(_tree(2), old, new)
    assert {name: metric.compute() for name, metric in metrics.items()} == pytest.approx(T5X, rel=1e-6)
