"""Fused attention against plain attention: values, gradients, packing, dropout, several devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.addons.kernels import attention_cudnn, attention_gpu, attention_tpu
from limba.checkpoints.train_state import TrainStateInitializer
from limba.devices import target
from limba.network import t5
from limba.network.kernels import attention
from limba.partitioning.meshes import PjitPartitioner
from tests.addons.kernels import networks

pytestmark = [pytest.mark.exhaustive, pytest.mark.usefixtures("kernels_are_right")]

HEAD_DIM = 16
of_each_device = pytest.mark.parametrize("kernels", [attention_gpu, attention_tpu], ids=["gpu", "tpu"])


def _arrays(queries: int, keys: int, rows: int = 2, dtype=np.float32):
    rng = np.random.default_rng(queries * 1000 + keys)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape) * 0.7, dtype)  # noqa: E731
    lengths = (queries, keys, keys, queries)
    table = jnp.asarray(rng.normal(size=(2, queries + keys - 1)), jnp.float32)
    return *(draw(rows, length, 2, HEAD_DIM) for length in lengths), table


@of_each_device
@pytest.mark.parametrize(
    "queries, keys, causal, has_bias",
    [(32, 32, False, True), (40, 24, False, False), (33, 33, True, True), (21, 37, False, True)],
)
def test_values_and_gradients_are_those_of_plain_attention(kernels, queries, keys, causal, has_bias):
    """Lengths that fill their tiles and others, packed rows, a query without any key."""
    query, key, value, cotangent, table = _arrays(queries, keys)
    table = table if has_bias else None
    of_queries = np.sort(np.random.default_rng(1).integers(1, 4, (2, queries)))
    of_keys = of_queries if queries == keys else np.sort(np.random.default_rng(2).integers(1, 4, (2, keys)))
    of_queries[1, 0] = 9  # not among the keys where those have segments of their own
    segments = jnp.asarray(of_queries, jnp.int32), jnp.asarray(of_keys, jnp.int32)

    def loss(function, *arrays):
        return jnp.sum(function(*arrays, segments, causal=causal) * cotangent)

    wanted = (0, 1, 2, 3) if has_bias else (0, 1, 2)
    results = [
        jax.jit(jax.value_and_grad(functools.partial(loss, function), wanted))(query, key, value, table)
        for function in (networks.with_tiles_of_16(kernels), networks.plain_attention)
    ]
    (ours, our_gradients), (plain, plain_gradients) = results
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
    for ours, plain in zip(our_gradients, plain_gradients, strict=True):
        assert float(jnp.max(jnp.abs(plain))) > 0.1
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)


@of_each_device
def test_bf16_is_as_exact_as_bf16(kernels):
    query, key, value, cotangent, table = _arrays(32, 32, dtype=jnp.bfloat16)
    segments = (jnp.ones((2, 32), jnp.int32),) * 2

    def loss(function, *arrays):
        return jnp.sum(function(*arrays, table, segments).astype(jnp.float32) * cotangent)

    exact = [x.astype(jnp.float32) for x in (query, key, value)]
    ours = jax.jit(jax.grad(functools.partial(loss, networks.with_tiles_of_16(kernels)), (0, 1, 2)))(query, key, value)
    plain = jax.jit(jax.grad(functools.partial(loss, networks.plain_attention), (0, 1, 2)))(*exact)
    for x, y in zip(ours, plain, strict=True):
        error = jnp.max(jnp.abs(x.astype(jnp.float32) - y)) / jnp.max(jnp.abs(y))
        assert 1e-5 < float(error) < 2e-2  # 2^-8 is bf16's own


@of_each_device
def test_nothing_leaks_between_packed_examples(kernels):
    query, key, value, _, table = _arrays(32, 32)
    segments = (jnp.asarray(np.repeat([[1, 2]], 2, 0).repeat(16, 1), jnp.int32),) * 2
    attend = networks.with_tiles_of_16(kernels)
    before = attend(query, key, value, table, segments)
    after = attend(query, key.at[:, 16:].set(100.0), value.at[:, 16:].set(1e30), table, segments)
    np.testing.assert_array_equal(before[:, :16], after[:, :16])
    assert (after[:, 16:] > 1e29).all()


@of_each_device
def test_prefixes_see_each_other(kernels):
    query, key, value, _, table = _arrays(33, 33)
    prefix = jnp.arange(33) < jnp.asarray([[20], [1]])
    segments = (jnp.ones((2, 33), jnp.int32),) * 2
    fused = networks.with_tiles_of_16(kernels)
    ours, plain = (
        f(query, key, value, table, segments, prefix, causal=True) for f in (fused, networks.plain_attention)
    )
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
    assert float(jnp.max(jnp.abs(ours - fused(query, key, value, table, segments, causal=True)))) > 0.1


# ----------------------------------------------------- cuDNN -----------------------------------------------------


@pytest.mark.parametrize(
    "queries, keys, causal, has_bias", [(32, 32, False, True), (24, 24, True, True), (24, 40, False, False)]
)
def test_cudnn_is_asked_for_plain_attention(queries, keys, causal, has_bias):
    """By XLA: what is asked of cuDNN, not its answer. The second row has padding, the third nothing else."""
    query, key, value, cotangent, table = _arrays(queries, keys, rows=3)
    table = table if has_bias else None
    of_queries, of_keys = (
        jnp.arange(length) < jnp.asarray([[length], [length - 7], [0]]) for length in (queries, keys)
    )
    cotangent = cotangent * of_queries[:, :, None, None]
    segments = of_queries.astype(jnp.int32), of_keys.astype(jnp.int32)

    def loss(function, *arrays):
        return jnp.sum(function(*arrays, segments, causal=causal) * cotangent)

    by_xla = functools.partial(attention_cudnn.attention, implementation="xla")
    wanted = (0, 1, 2, 3) if has_bias else (0, 1, 2)
    (ours, our_gradients), (plain, plain_gradients) = (
        jax.jit(jax.value_and_grad(functools.partial(loss, function), wanted))(query, key, value, table)
        for function in (by_xla, networks.plain_attention)
    )
    np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
    for ours, plain in zip(our_gradients, plain_gradients, strict=True):
        assert float(jnp.max(jnp.abs(plain))) > 0.1
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
    assert np.isfinite(by_xla(query, key, value, table, segments, causal=causal)).all()


def _visible(platform: str = "gpu", length: int = 32, is_packed: bool = False, has_prefix: bool = False, **changes):
    config = dataclasses.replace(networks.SIZES, kernels="cudnn", **{"dtype": "bfloat16", **changes})
    tokens = jnp.ones((2, length), jnp.int32)
    segments = tokens if is_packed else None
    with target.tracing_for_platform(platform):
        return attention.visible(
            config, tokens, tokens, segments, segments, prefix=tokens > 0 if has_prefix else None, causal=True
        )


def test_cudnn_computes_what_it_can():
    assert _visible().kernel == "attention_cudnn"
    assert _visible(head_dim=24).kernel == "attention_cudnn"  # which Limba's kernels do not
    for changes in (
        {"dtype": "float32"},
        {"length": 33},
        {"is_packed": True},
        {"has_prefix": True},
        {"platform": "tpu"},
    ):
        assert _visible(**changes).kernel == f"attention_{changes.get('platform', 'gpu')}", changes
    for head_dim in (20, 256):  # neither does
        assert _visible(head_dim=head_dim) is None
    assert _visible(platform="cpu") is None
    with target.without_kernels():  # one row, which initializes a network on a mesh
        assert _visible() is None


# ---------------------------------------------------- networks ---------------------------------------------------


def _network_gradients(config: t5.T5Config, partitioner: PjitPartitioner | None = None, packed: bool = False):
    model, batch = networks.model_and_batch(config, packed)
    params = networks.parameters(config)
    gradient = jax.value_and_grad(lambda params: model.loss_fn(params, batch, jax.random.key(1))[0])
    return (jax.jit if partitioner is None else partitioner.jit)(gradient)(params)


def _assert_close(ours, plain):
    np.testing.assert_allclose(ours[0], plain[0], rtol=1e-5)
    largest = max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(plain[1]))
    for x, y in zip(jax.tree.leaves(ours[1]), jax.tree.leaves(plain[1]), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5 * largest)


def test_a_packed_network_has_the_same_loss_and_gradients():
    """With dropout, scanned layers and a bias for each layer; rows with padding are in the next test."""
    changes = {"dropout_rate": 0.3, "scan_layers": True, "relative_bias_per_layer": True}
    config = dataclasses.replace(networks.SIZES, **changes)
    fused, plain = (
        _network_gradients(dataclasses.replace(config, kernels=choice), packed=True) for choice in ("fused", "xla")
    )
    _assert_close(fused, plain)


def test_each_device_attends_to_its_own_rows_and_heads():
    config = dataclasses.replace(networks.SIZES, kernels="fused")
    sharded = _network_gradients(config, PjitPartitioner(num_partitions=2, devices=jax.devices()[:4]))
    _assert_close(sharded, _network_gradients(dataclasses.replace(networks.SIZES, kernels="xla")))


def test_one_row_initializes_a_network_on_a_mesh():
    model, _ = networks.model_and_batch(dataclasses.replace(networks.SIZES, kernels="fused"), False)
    partitioner = PjitPartitioner(num_partitions=2, devices=jax.devices()[:4])
    made = TrainStateInitializer(model.optimizer_def, model.initial_variables, partitioner)
    found = made.from_scratch(jax.random.key(0)).params
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, model.param_shapes_and_axes()[0])


def test_cpus_take_xla_unless_told():
    assert not attention.is_fused("auto", 64)
    assert attention.is_fused("fused", 64)
    assert not attention.is_fused("fused", 48)
    with pytest.raises(ValueError, match=r"T5Config\.kernels is 'flash'; choose one of auto, fused, cudnn, xla"):
        dataclasses.replace(networks.SIZES, kernels="flash")


@pytest.mark.parametrize(
    ("platform", "head_dim", "is_fused"),
    [("gpu", 128, True), ("gpu", 256, False), ("tpu", 256, True), ("gpu", 48, False), ("cpu", 64, False)],
)
def test_widths_of_a_head_that_the_kernels_serve(platform, head_dim, is_fused):
    """An H100 has too little shared memory for 256."""
    with target.tracing_for_platform(platform):
        assert attention.is_fused("auto", head_dim) is is_fused
