"""Kernels are finite and as exact as their type for padding, packing and logits up to 1e4, values and gradients.

The reference is NumPy's in float64, with bounds on rounding of each number: of the products and sums that lead to it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.addons.kernels import attention_gpu, attention_tpu, layer_norm_gpu
from limba.network.kernels import linear_cross_entropy
from tests import compilation
from tests.addons.kernels import networks

# As users have it: without optimizations XLA does not fuse and reorder sums.
OPTIMIZED = compilation.AS_USERS | {"xla_backend_optimization_level": 3}
ROWS, LENGTH, HEADS, HEAD_DIM = 4, 40, 2, 16
# Steps of the type that a number may be off, of all that is added up for it.
_STEPS = 2
LOGITS = (1.0, 50.0, 450.0, 1e4)


def _reference(q, k, v, table, allowed, do):
    """Values and gradients in float64, and the sums of the absolute values of what they are sums of."""
    distance = np.arange(LENGTH) - np.arange(LENGTH)[:, None] + LENGTH - 1
    logits = np.einsum("bqhd,bkhd->bhqk", q, k) + table[:, distance]
    highest = np.max(logits, axis=-1, keepdims=True, where=allowed, initial=-np.inf)
    weights = np.exp(logits - np.where(np.isfinite(highest), highest, 0.0), where=allowed, out=np.zeros_like(logits))
    sums = weights.sum(-1, keepdims=True)
    weights = weights / np.where(sums > 0, sums, 1.0)

    def results(q, k, v, do, sign):
        of_weights = np.einsum("bqhd,bkhd->bhqk", do, v)
        of_logits = weights * (of_weights + sign * (weights * of_weights).sum(-1, keepdims=True))
        of_table = np.zeros((HEADS, 2 * LENGTH - 1))
        np.add.at(of_table.T, distance, np.moveaxis(of_logits.sum(0), 0, -1))
        return (
            np.einsum("bhqk,bkhd->bqhd", weights, v),
            np.einsum("bhqk,bkhd->bqhd", of_logits, k),
            np.einsum("bhqk,bqhd->bkhd", of_logits, q),
            np.einsum("bhqk,bqhd->bkhd", weights, do),
            of_table,
        )

    return results(q, k, v, do, -1), results(*map(np.abs, (q, k, v, do)), 1)


def _segments(rng, share, is_packed):
    """The last row is padding alone, unless nothing is."""
    real = np.full(ROWS, LENGTH) if share == 0 else np.array([LENGTH, int((1 - share) * LENGTH), 1, 0])
    numbers = np.sort(rng.integers(1, 4, (ROWS, LENGTH))) if is_packed else 1
    return np.where(np.arange(LENGTH) < real[:, None], numbers, 0).astype(np.int32)


def _batches():
    """Logits of each size with each kind of row; a few segments of queries have no key."""
    rng = np.random.default_rng(0)
    for size in LOGITS:
        for share, is_packed in ((0.0, False), (0.5, False), (0.5, True)):
            of_keys = _segments(rng, share, is_packed)
            of_queries = of_keys.copy()
            of_queries[0, 7:9] = 9
            scale = np.sqrt(size) / HEAD_DIM**0.25
            heads = [s * rng.normal(size=(ROWS, LENGTH, HEADS, HEAD_DIM)) for s in (scale, scale, 1.0, 1.0)]
            yield heads, rng.normal(size=(HEADS, 2 * LENGTH - 1)), of_queries, of_keys


def _check(kernel, dtype, allowed_by, has_table=True, share_segments=False):
    @functools.partial(jax.jit, compiler_options=OPTIMIZED)
    def values_and_gradients(arrays, do, segments):
        o, pull_back = jax.vjp(lambda *x: kernel(*x, segments), *arrays)
        return o, *pull_back(do)

    used = 0.0
    for heads, table, of_queries, of_keys in _batches():
        of_queries = of_keys if share_segments else of_queries
        q, k, v, do = (jnp.asarray(x, dtype) for x in heads)
        table = jnp.asarray(table if has_table else 0 * table, jnp.float32)
        arrays = (q, k, v, table) if has_table else (q, k, v)
        found = values_and_gradients(arrays, do, (of_queries, of_keys))
        allowed = allowed_by(of_queries[:, None, :, None] == of_keys[:, None, None, :])
        *exact, of_result = (np.asarray(x, np.float64) for x in (q, k, v, table, do))
        allowed = np.broadcast_to(allowed, (ROWS, HEADS, LENGTH, LENGTH))
        expected, sizes = _reference(*exact, allowed, of_result)
        # Logits are float32: a step of the largest changes weights by as much.
        logits = np.abs(np.einsum("bqhd,bkhd->bhqk", *exact[:2])).max()
        step = _STEPS * (float(jnp.finfo(dtype).eps) + logits * np.finfo(np.float32).eps)
        for x, reference, size in zip(found, expected, sizes, strict=False):  # without a table, without its gradient
            error = np.abs(np.asarray(x, np.float64) - reference)
            assert np.isfinite(error).all()
            used = max(used, float((error / (step * size + 1e-30)).max()))
    assert 0.2 < used <= 1.0


@pytest.mark.parametrize(("kernels", "dtype"), [(attention_gpu, "bfloat16"), (attention_tpu, "float32")])
def test_attention_with_a_bias(kernels, dtype):
    kernel = functools.partial(networks.with_tiles_of_16(kernels), causal=True)
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    _check(kernel, dtype, lambda mask: mask & causal)


def _as_float64(function, arrays, cotangents):
    """Values and gradients of what is written for JAX, in float64."""
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), (arrays, cotangents))
        values, pull_back = jax.vjp(function, *exact[0])
        return jax.device_get((*jax.tree.leaves(values), *pull_back(exact[1])))


def _assert_close(found, expected, rtol):
    for x, reference in zip(jax.tree.leaves(found), expected, strict=True):
        assert np.isfinite(np.asarray(x, np.float64)).all()
        np.testing.assert_allclose(np.asarray(x, np.float64), reference, atol=rtol * np.abs(reference).max())


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_a_residual_and_its_norm(dtype, scale):
    """With a row of zeros, which padding can be."""
    rng = np.random.default_rng(0)
    x, update, *cotangents = (jnp.asarray(scale * rng.normal(size=(2, 9, 48)), dtype) for _ in range(4))
    x, update = (array.at[1, 3].set(0) for array in (x, update))
    arrays, cotangents = (x, update, jnp.asarray(1 + rng.normal(size=48), jnp.float32)), tuple(cotangents)
    fused = functools.partial(layer_norm_gpu.add_and_norm, epsilon=1e-6, interpret=True)
    values, pull_back = jax.vjp(fused, *arrays)

    def plain(x, update, weights):
        total = x + update
        return total, total * jax.lax.rsqrt(jnp.mean(jnp.square(total), axis=-1, keepdims=True) + 1e-6) * weights

    _assert_close((values, pull_back(cotangents)), _as_float64(plain, arrays, cotangents), 2 * jnp.finfo(dtype).eps)


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [1.0, 1e2, 1e4])
def test_the_cross_entropy_of_logits_that_are_never_made(monkeypatch, dtype, size):
    monkeypatch.setattr(linear_cross_entropy, "CHUNK_BYTES", 4 * 10 * 12)  # four chunks
    rng = np.random.default_rng(0)
    states, kernel = jnp.asarray(rng.normal(size=(2, 5, 8)), dtype), rng.normal(size=(8, 48)) * size
    kernel = jnp.asarray(jnp.asarray(kernel, dtype), jnp.float32)  # it is multiplied in the type of the states
    targets, by_position = rng.integers(0, 48, (2, 5)), jnp.asarray(rng.normal(size=(2, 5)), jnp.float32)

    def ours(states, kernel):
        logits = linear_cross_entropy.LinearLogits(states, kernel)
        return linear_cross_entropy.cross_entropy(logits, jnp.asarray(targets), 0.0, 1e-4)[0]

    def plain(states, kernel):
        logits = jnp.einsum("bld,dv->blv", states, kernel)
        log_z = jax.nn.logsumexp(logits, axis=-1)
        return log_z - jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0] + 1e-4 * log_z**2

    loss, pull_back = jax.vjp(ours, states, kernel)
    found = (loss, *pull_back(by_position))
    _assert_close(found, _as_float64(plain, (states, kernel), by_position), 4 * jnp.finfo(dtype).eps)
