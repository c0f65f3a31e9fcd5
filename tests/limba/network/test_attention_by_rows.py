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


@pytest.mark.parametrize("kind", ["each query", "all queries", "none"])
def test_some_queries_after_others_give_the_numbers_of_all(monkeypatch, kind):
    """Outputs and gradients, with masks that are of each query or of all, and a bias that rows share."""
    rng = np.random.default_rng(0)
    query, key, value = (jnp.float32(rng.normal(size=(2, length, 3, 4))) for length in (12, 20, 20))
    bias = jnp.float32(rng.normal(size=(1, 3, 12, 20)))
    mask = None if kind == "none" else jnp.array(rng.random((2, 1, 12 if kind == "each query" else 1, 20)) < 0.8)

    def found(most):
        monkeypatch.setattr(attention_by_rows, "_LOGITS_OF_A_CORE", most)

        def loss(*given):
            attended = attention_by_rows.attend(attention.dot_product_attention, *given, mask)
            return jnp.sum(jnp.sin(attended)), attended

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))(query, key, value, bias)

    monkeypatch.setattr(attention_by_rows, "_FEWEST_QUERIES", 2)
    monkeypatch.setattr(attention_by_rows.os, "cpu_count", lambda: 1)
    whole, divided = found(10**9), found(2 * 3 * 4 * 20)
    for x, y in zip(jax.tree.leaves(divided), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_the_logits_of_a_long_row_are_never_there_at_once(monkeypatch):
    """4,096 queries of 4 heads: 256 at once for two cores, in the backward pass, too."""
    monkeypatch.setattr(attention_by_rows.os, "cpu_count", lambda: 2)
    row = jax.ShapeDtypeStruct((1, 4096, 4, 8), jnp.float32)

    def loss(query):
        return jnp.sum(attention_by_rows.attend(attention.dot_product_attention, query, query, query, None, None))

    assert _trips(jax.make_jaxpr(loss)(row)) == 16
    assert (
        max(x.aval.size for e in _all(jax.make_jaxpr(jax.grad(loss))(row).jaxpr) for x in e.outvars) == 4 * 256 * 4096
    )


def _all(jaxpr):
    for e in jaxpr.eqns:
        yield e
        for inner in jax.core.jaxprs_in_params(e.params):
            yield from _all(inner)


def _trips(jaxpr):
    return sum(e.params["length"] for e in jaxpr.eqns if e.primitive.name == "scan")
