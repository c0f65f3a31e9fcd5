"""Cross entropy without logits against the one with them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.models import losses
from limba.network.kernels import linear_cross_entropy
from limba.network.kernels.linear_cross_entropy import LinearLogits
from tests.addons.kernels import networks

BATCH, LENGTH, EMBED, VOCAB = 2, 6, 8, 48


@pytest.mark.sample(4)
@pytest.mark.parametrize("vocab_axis, scale", [(1, 1.0), (0, 0.3)], ids=["kernel of its own", "tied"])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_bytes", [2**28, 4 * BATCH * LENGTH * 12], ids=["one chunk", "four"])
def test_losses_hits_and_gradients(monkeypatch, vocab_axis, scale, label_smoothing, chunk_bytes):
    monkeypatch.setattr(linear_cross_entropy, "CHUNK_BYTES", chunk_bytes)
    rng = np.random.default_rng(0)
    states = jnp.asarray(rng.normal(size=(BATCH, LENGTH, EMBED)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(EMBED, VOCAB) if vocab_axis else (VOCAB, EMBED)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, VOCAB, (BATCH, LENGTH)), jnp.int32)
    # Some of the targets are the likeliest word, in chunks of all numbers.
    logits = states @ (kernel if vocab_axis else kernel.T)
    targets = targets.at[0].set(jnp.argmax(logits, -1)[0])
    weights = jnp.asarray(rng.uniform(size=(BATCH, LENGTH)), jnp.float32)

    def loss(in_parts, states, kernel):
        given = LinearLogits(states, kernel, vocab_axis, scale)
        if not in_parts:
            given = scale * states @ (kernel if vocab_axis else kernel.T)
        found = losses.token_losses(given, targets, label_smoothing, z_loss=1e-2)
        return jnp.sum(found.loss * weights), found

    compute = jax.jit(jax.value_and_grad(loss, (1, 2), has_aux=True), static_argnums=0)
    (_, ours), our_gradients = compute(True, states, kernel)
    (_, plain), plain_gradients = compute(False, states, kernel)
    for field in ("loss", "z_loss"):
        np.testing.assert_allclose(getattr(ours, field), getattr(plain, field), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(ours.is_right, plain.is_right)
    assert 6 <= int(jnp.sum(ours.is_right)) < BATCH * LENGTH
    for ours, plain in zip(our_gradients, plain_gradients, strict=True):
        assert float(jnp.max(jnp.abs(plain))) > 0.1
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)


def test_no_array_has_the_size_of_the_logits(monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "CHUNK_BYTES", 4 * BATCH * LENGTH * 12)
    states, kernel = jnp.zeros((BATCH, LENGTH, EMBED)), jnp.zeros((EMBED, VOCAB))
    targets = jnp.zeros((BATCH, LENGTH), jnp.int32)

    def loss(in_parts, states, kernel):
        given = LinearLogits(states, kernel) if in_parts else states @ kernel
        return jnp.sum(losses.token_losses(given, targets).loss)

    def shapes(in_parts):
        text = jax.jit(jax.grad(loss, (1, 2)), static_argnums=0).lower(in_parts, states, kernel).as_text()
        return f"tensor<{BATCH}x{LENGTH}x{VOCAB}xf32>" in text

    assert shapes(False) and not shapes(True)


@pytest.mark.usefixtures("kernels_are_right")
def test_a_tied_model_trains_the_same_without_logits():
    """Loss, all metrics and gradients; tests/addons/kernels/test_attention.py has a kernel of its own."""
    config = dataclasses.replace(networks.SIZES, logits_via_embedding=True)
    results = []
    for kernels in ("fused", "xla"):
        model, batch = networks.model_and_batch(dataclasses.replace(config, kernels=kernels))
        params = networks.parameters(config)
        step = jax.jit(jax.value_and_grad(model.loss_fn, has_aux=True))
        results.append(step(params, batch, jax.random.key(0)))
    for ours, plain in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=2e-5, atol=2e-5 * float(jnp.max(jnp.abs(plain))))
