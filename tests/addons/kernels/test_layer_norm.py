"""A residual and its layer norm in one kernel against the two written down; the feed-forward's own gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.addons.kernels import layer_norm_gpu
from limba.network import layers

EPSILON = 1e-6
fused = functools.partial(layer_norm_gpu.add_and_norm, epsilon=EPSILON, most_programs=5, interpret=True)


def plain(x, update, scale):
    x = x if update is None else x + update
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True) + EPSILON)
    return x, (x * inverse).astype(x.dtype) * scale.astype(x.dtype)


def _arrays(shape, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    scale = jnp.asarray(1 + 0.3 * rng.normal(size=shape[-1]), jnp.float32)
    return (draw(*shape), draw(*shape), scale), (draw(*shape), draw(*shape))


def _gradients(function, arrays, cotangents, uses_sum=True):
    def loss(x, update, scale):
        of_sum, of_norm = cotangents
        total, normalized = function(x, update, scale)
        return jnp.sum((normalized * of_norm).astype(jnp.float32)) + (
            jnp.sum((total * of_sum).astype(jnp.float32)) if uses_sum else 0.0
        )

    return jax.jit(jax.grad(loss, (0, 2) if arrays[1] is None else (0, 1, 2)))(*arrays)


@pytest.mark.parametrize(
    ("shape", "has_update", "uses_sum"),
    [((2, 7, 48), True, True), ((2, 7, 48), False, False), ((3, 100, 64), True, False), ((3, 100, 64), False, True)],
)
def test_values_and_gradients(shape, has_update, uses_sum, monkeypatch):
    """Several tiles a program, the last one in part; a width that is no power of two."""
    monkeypatch.setattr(layer_norm_gpu, "_TILE", 512)
    (x, update, scale), cotangents = _arrays(shape)
    arrays = (x, update if has_update else None, scale)
    for ours, expected in zip(fused(*arrays), plain(*arrays), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=1e-6)
    gradients = (_gradients(f, arrays, cotangents, uses_sum) for f in (fused, plain))
    for ours, expected in zip(*gradients, strict=True):
        assert float(jnp.max(jnp.abs(expected))) > 0.5
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_bf16_is_as_exact_as_bf16():
    arrays, cotangents = _arrays((2, 40, 48), jnp.bfloat16)
    exact = tuple(x.astype(jnp.float32) for x in arrays), tuple(x.astype(jnp.float32) for x in cotangents)
    for x, y in zip(_gradients(fused, arrays, cotangents), _gradients(plain, *exact), strict=True):
        error = jnp.max(jnp.abs(x.astype(jnp.float32) - y)) / jnp.max(jnp.abs(y))
        assert 1e-5 < float(error) < 2e-2  # 2^-8 is bf16's own


@pytest.mark.parametrize("activations", [("gelu", "linear"), ("relu",)], ids=["gated", "plain"])
def test_the_feed_forward_computes_its_activations_again(activations):
    """Values, gradients and dropout are those of the plain one; of a gated one only the branches are kept."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 8)), jnp.float32)
    blocks = [
        layers.MlpBlock(24, activations, intermediate_dropout_rate=0.5, kernels=choice, use_bias=True)
        for choice in ("fused", "xla")
    ]
    params = blocks[0].init(jax.random.key(0), x, deterministic=True)["params"]
    names = ("wi",) if len(activations) == 1 else ("wi_0", "wi_1")
    assert set(params) == {*names, "wo"}

    def loss(block, params, x):
        out = block.apply({"params": params}, x, rngs={"dropout": jax.random.key(1)})
        return jnp.sum(jnp.sin(out))

    ours, expected = (
        jax.jit(jax.value_and_grad(functools.partial(loss, block), (0, 1)))(params, x) for block in blocks
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert float(jnp.max(jnp.abs(expected[1][1]))) > 0.1

    def kept(block):
        _, backward = jax.vjp(
            functools.partial(block.apply, rngs={"dropout": jax.random.key(1)}), {"params": params}, x
        )
        return sum(a.size for a in jax.tree.leaves(backward) if a.shape == (2, 5, 24))

    if len(activations) > 1:
        assert kept(blocks[0]) == 2 * 240
        assert kept(blocks[1]) > kept(blocks[0])
