import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba import decoding
from tests.limba import small


def test_greedy_equals_argmax_over_growing_prefixes():
    model = small.model()
    params = model.initial_variables(jax.random.key(1))["params"]
    batch = small.batch(4, rows=3)
    tokens, scores = model.predict_batch(params, batch, max_decode_length=6)

    for row in range(3):
        prefix, score = [0], 0.0
        inputs = batch["encoder_input_tokens"][row : row + 1]
        for _ in range(6):
            decoder_inputs = np.array([prefix], np.int32)
            step = {
                "encoder_input_tokens": inputs,
                "decoder_input_tokens": decoder_inputs,
                "decoder_target_tokens": np.ones_like(decoder_inputs),
            }
            log_probs = jax.nn.log_softmax(model.logits(params, step)[0, -1])
            token = int(jnp.argmax(log_probs))
            score += float(log_probs[token])
            prefix.append(token)
            if token == 1:
                break
        expected = (prefix[1:] + [0] * 6)[:6]
        assert tokens[row].tolist() == expected
        assert float(scores[row]) == pytest.approx(score, abs=1e-3)


def _fixed_logits(probabilities):
    logits = jnp.log(jnp.asarray(probabilities))
    return lambda token, cache: (jnp.broadcast_to(logits, (token.shape[0], len(probabilities))), cache)


def _sampled(rows=4000, **options):
    step = _fixed_logits([0.001, 0.001, 0.4, 0.3, 0.2, 0.098])
    tokens, _ = decoding.temperature_sample({}, step, rows, 1, eos_id=1, decode_rng=jax.random.key(0), **options)
    return np.bincount(tokens[:, 0], minlength=6) / rows


def test_sampling_follows_the_distribution():
    np.testing.assert_allclose(_sampled(topk=0), [0.001, 0.001, 0.4, 0.3, 0.2, 0.098], atol=0.03)


def test_top_k_renormalizes_over_the_k_best():
    np.testing.assert_allclose(_sampled(topk=2), [0, 0, 4 / 7, 3 / 7, 0, 0], atol=0.03)


def test_top_p_keeps_the_smallest_set_with_that_mass():
    np.testing.assert_allclose(_sampled(topk=0, topp=0.6), [0, 0, 4 / 7, 3 / 7, 0, 0], atol=0.03)


def test_low_temperature_sharpens():
    assert _sampled(topk=0, temperature=0.1)[2] > 0.9


def test_rows_end_at_eos_and_are_padded():
    step = _fixed_logits([0.1, 0.8, 0.1])
    tokens, scores = decoding.temperature_sample({}, step, 2, 4, eos_id=1)
    assert tokens.tolist() == [[1, 0, 0, 0]] * 2
    np.testing.assert_allclose(scores, np.log(0.8), rtol=1e-5)


@pytest.mark.parametrize(
    "options", [{"topk": 5, "topp": 0.9, "decode_rng": jax.random.key(0)}, {"topp": 0.9}, {"topk": 5}]
)
def test_contradictory_options(options):
    with pytest.raises(ValueError, match=r"topk|decode_rng"):
        decoding.temperature_sample({}, _fixed_logits([0.5, 0.5]), 1, 1, eos_id=1, **options)


def test_score_batch_is_the_log_probability_of_the_targets():
    model = small.model()
    params = model.initial_variables(jax.random.key(1))["params"]
    batch = small.batch(5, rows=4)
    log_probs = jax.nn.log_softmax(model.logits(params, batch))
    picked = np.take_along_axis(np.asarray(log_probs), batch["decoder_target_tokens"][..., None], -1)[..., 0]
    expected = (picked * batch["decoder_loss_weights"]).sum(-1)
    np.testing.assert_allclose(model.score_batch(params, batch), expected, rtol=1e-5)
