"""Attention of one row after another gives the numbers of all rows at once, whatever rows share and do not share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.network import attention, attention_by_rows
from limba.partitioning.meshes import PjitPartitioner
from tests.limba.network.encoders import test_encoder


def _config(**fields):
    layers = 2 if "global_attention_every" in fields else 1
    return test_encoder._config(max_positions=24, num_layers=layers, **{"attention_dropout_rate": 0.0} | fields)


def _gradients(config, seed):
    params, batch = test_encoder._params(config), test_encoder._packed(23)
    return jax.jit(jax.value_and_grad(lambda p: test_encoder._loss(config, p, *batch, seed=seed)))(params)


def test_losses_and_gradients_are_those_of_all_rows_at_once(monkeypatch):
    """Whose numbers are right, also compiled as for a user: test_attention_weights."""
    monkeypatch.setattr(attention_by_rows, "_SHORTEST", 1)
    monkeypatch.setattr(attention_by_rows, "_HEADS_OF_A_CORE", 0)
    fields = {"position_embedding_type": "rotary", "global_attention_every": 2, "local_attention_window": 8}
    (loss, by_rows), (plain_loss, plain) = (
        _gradients(_config(kernels=kernels, **fields), None) for kernels in ("auto", "xla")
    )
    np.testing.assert_allclose(loss, plain_loss, rtol=1e-6)
    largest = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(plain))
    assert largest > 0.01
    for x, y in zip(jax.tree.leaves(by_rows), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6 * largest)


@pytest.mark.parametrize(
    ("cores", "batch", "length", "loops"),
    [(2, 8, 256, 8), (8, 8, 256, 2), (64, 8, 256, 0), (2, 8, 128, 0), (2, 1, 256, 0), (3, 7, 256, 7), (4, 7, 256, 0)],
)
def test_a_loop_has_work_for_all_cores(monkeypatch, cores, batch, length, loops):
    """Of 12 heads in each row."""
    monkeypatch.setattr(attention_by_rows.os, "cpu_count", lambda: cores)
    array = jax.ShapeDtypeStruct((batch, length, 12, 8), jnp.float32)

    def attend(query):
        return attention_by_rows.attend(attention.dot_product_attention, query, query, query, None, None)

    assert _trips(jax.make_jaxpr(attend)(array)) == loops
    with jax.sharding.use_abstract_mesh(PjitPartitioner(num_partitions=1).mesh.abstract_mesh):
        assert _trips(jax.make_jaxpr(attend)(array)) == 0  # eight devices have their rows already


def _trips(jaxpr):
    return sum(e.params["length"] for e in jaxpr.eqns if e.primitive.name == "scan")
