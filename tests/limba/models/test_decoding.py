import copy
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.models import decoding
from limba.network.finite_numbers import outputs as finite_outputs
from tests.limba import small

# Numbers of fused code are others. What only asks for the right tokens is compiled fast.
compiled_as_users = pytest.mark.usefixtures("as_users")

# What T5X's decoders return for the same tables, prompts and keys.
GOLDEN = Path(__file__).parents[1] / "golden" / "decoding_t5x.npz"

_SAMPLING = {"decode_rng": jax.random.PRNGKey(3), "rescale_log_probs": True}

# Name: decoder, whether prompts are given, whether the cache holds them, the cache's batch axis, options.
CASES = {
    "beam4": (decoding.beam_search, False, False, 0, {"num_decodes": 4, "alpha": 0.6}),
    "beam1": (decoding.beam_search, False, False, 0, {"num_decodes": 1, "alpha": 1.0}),
    "beam_prompt": (decoding.beam_search, True, False, 1, {"num_decodes": 3, "max_decode_len": 7}),
    "beam_prefilled": (decoding.beam_search, True, True, 1, {"num_decodes": 3}),
    "greedy": (decoding.temperature_sample, True, False, 0, {"rescale_log_probs": False}),
    "topk": (
        decoding.temperature_sample,
        False,
        False,
        1,
        _SAMPLING | {"num_decodes": 3, "topk": 4, "temperature": 0.7},
    ),
    "topp_prefilled": (
        decoding.temperature_sample,
        True,
        True,
        0,
        _SAMPLING | {"num_decodes": 2, "topk": 0, "topp": 0.8, "max_decode_steps": 3, "rescale_log_probs": False},
    ),
}


@compiled_as_users
@pytest.mark.parametrize("name", CASES)
def test_tokens_and_scores_are_t5x_s(name):
    decode, prompted, prefilled, axis, options = CASES[name]
    with np.load(GOLDEN) as golden:
        tables, prompts = jnp.asarray(golden["tables"], jnp.float32), jnp.asarray(golden["prompts"], jnp.int32)
        expected_tokens, expected_scores = golden[f"{name}_tokens"], golden[f"{name}_scores"]
    rows, vocab = len(prompts), tables.shape[-1]
    lengths = jnp.sum(prompts != 0, axis=1)

    def step(state):
        # Cached counts lower the logits of tokens that came before: beams that take over a wrong cache differ.
        row, seen = (jnp.squeeze(state.cache[name], axis=0) if axis else state.cache[name] for name in ("row", "seen"))
        token = state.cur_token[:, 0]
        new_seen = seen + jax.nn.one_hot(token, vocab)
        index = state.cache["cache_index"] + 1
        cache = {"row": state.cache["row"], "seen": new_seen[None] if axis else new_seen, "cache_index": index}
        return tables[row, token] - 0.7 * seen, cache

    cache = {"row": jnp.arange(rows), "seen": jnp.zeros((rows, vocab)), "cache_index": lengths * prefilled}
    if axis:
        cache = {key: value[None] for key, value in cache.items()}
    given = {"tokens_to_logits": step, "eos_id": 1, "cache_offset": axis, **options}
    tokens, scores = jax.jit(functools.partial(decode, **given))(
        inputs=prompts * prompted,
        cache=cache if prefilled else cache | {"cache_index": jnp.int32(0)},
        initial_index=lengths if prefilled else None,
    )
    np.testing.assert_array_equal(tokens, expected_tokens)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------- by hand --------------------------------------------------------


def _fixed_logits(probabilities):
    logits = jnp.log(jnp.asarray(probabilities))
    return lambda state: (jnp.broadcast_to(logits, (len(state.cur_token), len(probabilities))), state.cache)


def _empty(rows, length):
    return jnp.zeros((rows, length), jnp.int32)


def _sampled(rows=4000, **options):
    step = _fixed_logits([0.001, 0.001, 0.4, 0.3, 0.2, 0.098])
    tokens, _ = decoding.temperature_sample(_empty(rows, 1), {}, step, 1, jax.random.key(0), **options)
    return np.bincount(tokens[:, 0, 0], minlength=6) / rows


def test_sampling_follows_the_distribution():
    np.testing.assert_allclose(_sampled(topk=0), [0.001, 0.001, 0.4, 0.3, 0.2, 0.098], atol=0.03)


@compiled_as_users
@pytest.mark.parametrize("traced", [False, True])
def test_top_k_and_top_p_renormalize_over_what_they_keep(traced):
    expected = [0, 0, 4 / 7, 3 / 7, 0, 0]
    sampled = (
        jax.jit(
            lambda topk, topp: decoding.temperature_sample(
                _empty(4000, 1),
                {},
                _fixed_logits([0.001, 0.001, 0.4, 0.3, 0.2, 0.098]),
                1,
                jax.random.key(0),
                topk=topk,
                topp=topp,
            )[0]
        )
        if traced
        else None
    )
    for topk, topp in ((2, 0.0), (0, 0.6)):
        shares = (
            np.bincount(sampled(topk, topp)[:, 0, 0], minlength=6) / 4000 if traced else _sampled(topk=topk, topp=topp)
        )
        np.testing.assert_allclose(shares, expected, atol=0.03)


@pytest.mark.parametrize(("options", "largest"), [({"topk": 2}, -1e4), ({"topk": 0, "topp": 0.6}, 1e4)])
def test_what_is_unlikely_stays_so_at_any_logits_and_temperature(as_users, options, largest):
    logits = jnp.asarray([0.0, -1e-4, -1e-3, -1e-2]) * 1e4 / 4 + largest

    def step(state):
        return jnp.broadcast_to(logits, (len(state.cur_token), 4)), state.cache

    tokens, scores = jax.jit(
        lambda: decoding.temperature_sample(
            _empty(500, 1), {}, step, 1, jax.random.key(0), temperature=5e-4, rescale_log_probs=True, **options
        )
    )()
    assert np.isfinite(scores).all()
    assert set(np.unique(tokens)) == {0}


def test_temperatures_of_rows_differ():
    step = _fixed_logits([0.1, 0.1, 0.5, 0.3])
    temperature = jnp.asarray([0.0, 1.0])
    tokens, scores = decoding.temperature_sample(
        _empty(2, 1), {}, step, 1, jax.random.key(0), 50, temperature, topk=0, rescale_log_probs=False
    )
    assert (tokens[0] == 2).all()
    assert len(np.unique(tokens[1])) == 4
    np.testing.assert_allclose(scores[0], np.log(0.5), rtol=1e-5)


def test_rows_end_at_eos_and_are_padded():
    step = _fixed_logits([0.1, 0.8, 0.1])
    tokens, scores = decoding.temperature_sample(_empty(2, 4), {}, step, 1, rescale_log_probs=False)
    assert tokens.tolist() == [[[1, 0, 0, 0]]] * 2
    np.testing.assert_allclose(scores, np.log(0.8), rtol=1e-5)


def test_beams_that_end_are_compared_by_their_penalized_scores():
    # From the first token on: EOS with 0.5; token 2 with 0.4, after which EOS is certain.
    table = jnp.log(jnp.asarray([[1e-9, 0.5, 0.4, 0.1], [0.25] * 4, [1e-9, 1.0, 1e-9, 1e-9], [0.25] * 4]))
    tokens, scores = decoding.beam_search(
        _empty(1, 5), {}, lambda state: (table[state.cur_token[:, 0]], state.cache), 1, num_decodes=2, alpha=2.0
    )
    assert tokens[0].tolist() == [[1, 0, 0, 0, 0], [2, 1, 0, 0, 0]]
    np.testing.assert_allclose(scores[0], [np.log(0.5), np.log(0.4) / (7 / 6) ** 2], rtol=1e-5)


def test_callbacks_see_the_state_and_change_it():
    def ban_what_came_last(logits, state):
        return jnp.where(jnp.arange(4) == state.cur_token, decoding.NEG_INF, logits)

    def end_rows_that_begin_with_2(state):
        first = (jnp.arange(6) == 2) & (state.sequences[:, 1:2] == 2)
        return state.replace(sequences=jnp.where(first, 1, state.sequences))

    tokens, _ = decoding.temperature_sample(
        jnp.asarray([[0, 0, 0, 0], [0, 3, 0, 0]]),
        {},
        _fixed_logits([0.1, 0.1, 0.5, 0.3]),
        1,
        state_callback_fn=end_rows_that_begin_with_2,
        logit_callback_fn=ban_what_came_last,
    )
    assert tokens[:, 0].tolist() == [[2, 1, 0, 0], [3, 2, 3, 2]]


def test_contradictory_options():
    with pytest.raises(ValueError, match=r"topk \(5\) or with topp"):
        decoding.temperature_sample(_empty(1, 1), {}, _fixed_logits([0.5, 0.5]), 1, topk=5, topp=0.9)
    for name in ("temperature", "topk", "topp"):  # they would be greedy, or keep all tokens
        options = {"topk": 0, name: -1}
        with pytest.raises(ValueError, match=f"temperature_sample.{name} is -1; it is at least 0"):
            decoding.temperature_sample(_empty(1, 1), {}, _fixed_logits([0.5, 0.5]), 1, **options)
    with pytest.raises(ValueError, match="max_decode_steps is 4"):
        decoding.temperature_sample(_empty(1, 3), {}, _fixed_logits([0.5, 0.5]), 1, max_decode_steps=4)


# --------------------------------------------------- with a network --------------------------------------------------


@pytest.fixture(scope="module")
def model():
    greedy = functools.partial(decoding.temperature_sample, rescale_log_probs=False)
    return small.model(decode_fn=greedy, emb_dim=32, num_encoder_layers=1)


@pytest.fixture(scope="module")
def params(model):
    return small.random_params(model)


@compiled_as_users
@pytest.mark.smoke
def test_greedy_equals_argmax_over_growing_prefixes(model, params):
    batch = small.batch(4, rows=3, targets=6)
    tokens, aux = jax.jit(model.predict_batch_with_aux)(params, batch)
    assert tokens.shape == (3, 6)

    # What follows a position does not change its logits, so prefixes are filled up with zeros to one shape.
    log_probs_of = jax.jit(lambda params, step: jax.nn.log_softmax(model.logits(params, step)))
    prefixes, scores = np.zeros((3, 7), np.int32), np.zeros(3)
    for i in range(6):
        step = {
            "encoder_input_tokens": batch["encoder_input_tokens"],
            "decoder_input_tokens": prefixes[:, :6],
            "decoder_target_tokens": np.ones((3, 6), np.int32),
        }
        log_probs = np.asarray(log_probs_of(params, step)[:, i])
        going = ~np.any(prefixes == 1, axis=1)
        prefixes[:, i + 1] = np.where(going, log_probs.argmax(-1), 0)
        scores += np.where(going, log_probs.max(-1), 0)
    np.testing.assert_array_equal(tokens, prefixes[:, 1:])
    np.testing.assert_allclose(aux["scores"], scores, atol=1e-3)


def _beams_by_prefixes(logits_of, prompts, num_decodes):
    """Beam search without a cache: the network sees the whole prefixes again for every token."""
    length = prompts.shape[1]

    def step(state):
        logits = logits_of(state.sequences[:, :length])
        return jnp.take(logits, state.cur_index, axis=1), state.cache

    return decoding.beam_search(prompts, {}, step, 1, num_decodes)


def test_beams_that_change_places_keep_what_they_have_seen():
    fields = {"scan_layers": True, "relative_bias_per_layer": True}
    model = small.model(emb_dim=32, num_encoder_layers=1, num_decoder_layers=2, **fields)
    params = small.random_params(model)
    batch = small.batch(4, rows=3, targets=10)
    predict = functools.partial(model.predict_batch_with_aux, num_decodes=4, return_all_decodes=True)
    tokens, aux = jax.jit(predict)(params, batch)

    def logits_of(prefixes):
        inputs = jnp.repeat(batch["encoder_input_tokens"], 4, axis=0)
        fed = {"encoder_input_tokens": inputs, "decoder_input_tokens": prefixes}
        return model.logits(params, fed | {"decoder_target_tokens": jnp.ones_like(prefixes)})

    expected, scores = jax.jit(lambda: _beams_by_prefixes(logits_of, jnp.zeros((3, 10), jnp.int32), 4))()
    assert len({tuple(beam) for row in expected.tolist() for beam in row}) == 12
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_allclose(aux["scores"], scores, rtol=1e-4)


@compiled_as_users
def test_score_batch_is_the_log_probability_of_the_targets(model, params):
    batch = small.batch(5, rows=4)
    log_probs = jax.jit(lambda params, batch: jax.nn.log_softmax(model.logits(params, batch)))(params, batch)
    picked = np.take_along_axis(np.asarray(log_probs), batch["decoder_target_tokens"][..., None], -1)[..., 0]
    expected = (picked * batch["decoder_loss_weights"]).sum(-1)
    np.testing.assert_allclose(jax.jit(model.score_batch)(params, batch), expected, rtol=1e-5)


@compiled_as_users
def test_scores_of_likely_tokens_keep_their_bits():
    """Of a trained model: logits of 30 and more, and a token whose probability is almost 1."""
    logits = np.random.default_rng(0).uniform(15, 25, size=(64, 500)).astype(np.float32)
    logits[:, 7] = np.linspace(33, 45, 64)

    def step(state):
        return jnp.asarray(logits), state.cache

    tokens, scores = decoding.temperature_sample(_empty(64, 1), {}, step, 1, rescale_log_probs=False)
    assert (tokens[:, 0, 0] == 7).all()
    exact = logits.astype(np.float64)
    exact = exact[:, 7] - np.log(np.exp(exact - exact[:, 7:8]).sum(axis=1)) - exact[:, 7]
    np.testing.assert_allclose(scores[:, 0], exact, rtol=0, atol=1e-6)


def _nan_from(index, sign, num_tokens=4):
    """Logits that are NaN at one token, with the sign that a CPU's own NaN has or the other, from a step on."""
    likely = jnp.log(jnp.asarray([0.1, 0.3, 0.4, 0.2]))
    bad = likely.at[3].set(jnp.copysign(jnp.nan, sign))
    return lambda state: (jnp.where(jnp.max(state.cur_index) >= index, bad, likely)[None], state.cache)


@pytest.mark.sample(1)
@compiled_as_users
@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_logits_that_are_nan_show_in_the_best_score(index, sign):
    """However a way of decoding sorts them; also where a beam has ended before."""
    step = _nan_from(index, sign)
    _, searched = decoding.beam_search(_empty(1, 4), {}, lambda s: (jnp.tile(step(s)[0], (2, 1)), s.cache), 1, 2)
    assert not np.isfinite(searched[0, -1])
    for options in ({}, {"topk": 0}, {"topk": 2, "rescale_log_probs": False}, {"temperature": 0.0, "topk": 3}):
        _, scores = decoding.temperature_sample(_empty(1, 4), {}, step, -1, **options)
        assert not np.isfinite(scores).any(), options
    _, certain = decoding.temperature_sample(_empty(1, 4), {}, _nan_from(9, sign), -1)
    assert certain.tolist() == [[0.0]]


@compiled_as_users
def test_what_is_forbidden_has_no_probability_and_is_not_wrong(model, params):
    """Scores of -inf are of constrained decoding, or of a network that forbids padding, unless weights are bad."""
    forbidden = _fixed_logits([0.5, 0.0, 0.5, 0.0])
    _, scores = decoding.temperature_sample(_empty(1, 2) + 3, {}, forbidden, 1)
    assert scores.tolist() == [[0.0]]
    outputs = {"scores": np.array([-1.0, -np.inf, decoding.NEG_INF]), "tokens": np.zeros((3, 2), np.int32)}
    finite = {"kernel": jnp.ones(2)}
    assert finite_outputs.first_row(outputs, finite) is None
    assert finite_outputs.first_row(outputs, {"kernel": jnp.array([1.0, -jnp.inf])}) == 1
    for bad in (np.nan, np.inf):
        outputs["scores"][2] = bad
        assert finite_outputs.first_row(outputs, finite) == 2

    class Forbids(type(model)):
        def _compute_logits(self, *args, **options):
            return super()._compute_logits(*args, **options).at[..., 0].set(-jnp.inf)

    other = copy.copy(model)
    other.__class__ = Forbids
    found = jax.jit(other.score_batch)(params, small.batch(0))
    assert np.isfinite(found).all()


def test_very_many_beams_are_named_once(caplog):
    for num_decodes in (64, 65, 65):
        decoding.beam_search(_empty(1, 2), {}, _fixed_logits([0.5, 0.25, 0.25]), 1, num_decodes=num_decodes)
    assert caplog.text.count("beams: each line is decoded as") == 1
    assert "65 beams: each line is decoded as 65 lines are" in caplog.text
