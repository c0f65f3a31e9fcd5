import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.models import losses

# Compiled as users' programs are: numbers of fused code are others.
pytestmark = [pytest.mark.usefixtures("as_users"), pytest.mark.smoke]


def _naive(logits, targets, smoothing, z_loss):
    """Cross entropy from the definition, in float64."""
    logits = logits.astype(np.float64)
    vocab = logits.shape[-1]
    log_z = np.log(np.exp(logits).sum(-1))
    soft = np.full(logits.shape, smoothing / (vocab - 1))
    np.put_along_axis(soft, targets[..., None], 1 - smoothing, axis=-1)
    loss = -(soft * (logits - log_z[..., None])).sum(-1)
    if smoothing:
        entropy = -((1 - smoothing) * np.log(1 - smoothing) + smoothing * np.log(smoothing / (vocab - 1)))
        loss = loss - entropy
    return loss + z_loss * log_z**2, z_loss * log_z**2


@pytest.fixture
def example():
    rng = np.random.default_rng(0)
    return rng.normal(size=(3, 5, 11)).astype(np.float32) * 3, rng.integers(0, 11, (3, 5), dtype=np.int32)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("z_loss", [0.0, 1e-2])
def test_cross_entropy_and_its_gradient(example, smoothing, z_loss):
    logits, targets = example
    loss, z = losses.cross_entropy_with_logits(logits, targets, smoothing, z_loss)
    expected_loss, expected_z = _naive(logits, targets, smoothing, z_loss)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(z, expected_z, rtol=1e-5, atol=1e-6)

    grad = jax.grad(lambda x: losses.cross_entropy_with_logits(x, targets, smoothing, z_loss)[0].sum())(logits)
    for index in [(0, 0, 0), (1, 2, 3), (2, 4, 10), (1, 1, int(targets[1, 1]))]:
        moved = [logits.copy().astype(np.float64) for _ in range(2)]
        for sign, copy in zip((1, -1), moved, strict=True):
            copy[index] += sign * 1e-4
        difference = _naive(moved[0], targets, smoothing, z_loss)[0].sum()
        difference -= _naive(moved[1], targets, smoothing, z_loss)[0].sum()
        assert grad[index] == pytest.approx(difference / 2e-4, abs=1e-4)


def test_smoothed_loss_is_zero_at_its_target():
    probabilities = np.full(10, 0.1 / 9, np.float32)
    probabilities[4] = 0.9
    loss, _ = losses.cross_entropy_with_logits(jnp.log(probabilities)[None], jnp.array([4]), 0.1, 0.0)
    assert float(loss[0]) == pytest.approx(0.0, abs=1e-6)


def test_of_words_alike_the_first_is_the_likeliest():
    rng = np.random.default_rng(0)
    logits, targets = rng.integers(0, 3, (9, 30, 7)).astype(np.float32), rng.integers(0, 7, (9, 30), dtype=np.int32)
    is_right = losses.token_losses(jnp.asarray(logits), jnp.asarray(targets)).is_right
    np.testing.assert_array_equal(is_right, logits.argmax(-1) == targets)
    assert 0.1 < is_right.mean() < 0.9


def _batch():
    return {
        "decoder_target_tokens": jnp.array([[5, 6, 1, 0], [7, 1, 8, 1]]),
        "decoder_loss_weights": jnp.array([[1, 1, 1, 0], [1, 1, 1, 1]]),
        "decoder_segment_ids": jnp.array([[1, 1, 1, 0], [1, 1, 2, 2]]),
    }


def test_normalizing_factors():
    factor = lambda name: losses.normalizing_factor_and_weights(  # noqa: E731
        losses.canonical_normalizing_factor(name), _batch()
    )
    assert factor(None)[0] is None
    assert factor(512.0)[0] == 512.0
    assert float(factor("NUM_REAL_TARGET_TOKENS")[0]) == 7
    assert float(factor("SpecialLossNormalizingFactor.NUM_TOTAL_TARGET_TOKENS")[0]) == 8
    total, weights = factor("AVERAGE_PER_SEQUENCE")
    assert float(total) == pytest.approx(3)  # one plain sequence, two packed ones
    third = 1 / 3
    np.testing.assert_allclose(weights, [[third, third, third, 0], [0.5, 0.5, 0.5, 0.5]], rtol=1e-6)


@pytest.mark.parametrize("factor", ["PER_TOKEN", 0, -1.5])
def test_unknown_normalizing_factor(factor):
    with pytest.raises(ValueError, match="loss_normalizing_factor"):
        losses.canonical_normalizing_factor(factor)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("largest", [30.0, 1e4])
def test_large_logits_have_the_loss_and_the_gradient_of_float64(as_users, dtype, largest):
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.uniform(-1, 1, (8, 64, 96)) * largest, dtype)
    targets = rng.integers(0, 96, (8, 64), dtype=np.int32)

    def loss(x):
        return losses.cross_entropy_with_logits(x, targets, 0.0, 0.0)[0].sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(logits)
    wide = np.asarray(logits, np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    log_z = np.log(powers.sum(-1)) + wide.max(-1)
    expected = log_z.sum() - np.take_along_axis(wide, targets[..., None], -1).sum()
    assert float(value) == pytest.approx(expected, rel=1e-5)
    of_logits = powers / powers.sum(-1, keepdims=True) - np.eye(96)[targets]
    assert gradient.dtype == logits.dtype
    np.testing.assert_allclose(
        np.asarray(gradient, np.float64), of_logits, atol=5e-3 if dtype == "bfloat16" else 1e-5 + 1e-7 * largest
    )
