"""NorT5's network beside numbers of HPLT's own code, decoding with a cache, packed rows, and what no NorT5 has."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from limba.addons.nort5 import nort5, relative_attention
from limba.models import decoding, encoder_decoder_model
from tests.limba import small

SIZES = {
    "vocab_size": 50,
    "emb_dim": 12,
    "num_heads": 2,
    "head_dim": 6,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "mlp_dim": 10,
    "num_buckets": 6,
}
# What `NorT5ForConditionalGeneration` of HPLT-WP4 computes of `numbers` and `batch`: of some tokens the first logits,
# in float32 by PyTorch 2.13 on an AMD EPYC.
RECORDED = [
    [[0.137468, 1.824177, 1.363371], [-1.126178, 1.852082, -0.032802], [0.518603, 1.925763, 1.087803]],
    [[0.518068, 0.855271, 1.074117], [0.309253, 1.624588, 1.046456], [0.297994, 2.389426, 0.968175]],
]


def config(**fields):
    return nort5.NorT5Config(**SIZES | fields)


def numbers(cfg):
    """Parameters by name, which do not depend on each other; norms multiply by about 0.8."""
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    init = functools.partial(cfg.network().init, enable_dropout=False)
    shapes = jax.eval_shape(init, jax.random.key(0), tokens, tokens, tokens)["params"]
    found = {}
    for number, (name, like) in enumerate(sorted(traverse_util.flatten_dict(shapes, sep="/").items())):
        center = 0.8 if name.endswith("scale") else 0.0
        found[name] = np.random.default_rng(number).normal(center, 0.3, like.shape).astype(np.float32)
    return found


def batch():
    """Rows longer than the exact buckets; one has padding."""
    rng = np.random.default_rng(3)
    inputs, targets = rng.integers(7, 50, (2, 24), np.int32), rng.integers(7, 50, (2, 15), np.int32)
    inputs[1, 17:] = 0
    shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    return {"encoder_input_tokens": inputs, "decoder_input_tokens": shifted, "decoder_target_tokens": targets}


def test_the_logits_are_those_of_hplts_code():
    params = traverse_util.unflatten_dict(numbers(config()), sep="/")
    logits = small.call(config().network(), params, *batch().values())
    assert logits.shape == (2, 15, 50) and logits.dtype == np.float32
    np.testing.assert_allclose(logits[:, ::7, :3], RECORDED, atol=1e-5)


def test_distances_have_a_bucket_each_up_to_half_of_them_and_the_last_one_from_511_on():
    rows = relative_attention.rows_of_distances(600, 32)
    assert rows[600 - 16 : 600 + 17].tolist() == list(range(31 - 16, 31 + 17))
    assert rows[600 + 17] == 31 + 17 and rows[600 + 100] == 31 + 24 and rows[600 + 490] == rows[-1] == 62
    assert rows[600 + 400] == 62 - 1 and rows.tolist() == (62 - rows[::-1]).tolist()


@pytest.mark.parametrize("keeps_keys", [True, False])
def test_beams_with_a_cache_are_those_of_whole_prefixes(monkeypatch, keeps_keys):
    """Also where a network does not offer to keep the encoder's keys."""
    accepts = encoder_decoder_model._accepts
    offers = lambda f, name: accepts(f, name) and (keeps_keys or name != "keep_encoded_keys")  # noqa: E731
    monkeypatch.setattr(encoder_decoder_model, "_accepts", offers)
    model = small.model(module=config(vocab_size=small.VOCAB_SIZE).network())
    params = traverse_util.unflatten_dict(numbers(model.module.config), sep="/")
    rows = small.batch(4, rows=2, targets=8)
    predict = functools.partial(model.predict_batch_with_aux, num_decodes=3, return_all_decodes=True)
    tokens, aux = jax.jit(predict)(params, rows)

    def step(state):
        prefixes = state.sequences[:, :8]
        inputs = jnp.repeat(rows["encoder_input_tokens"], 3, axis=0)
        fed = {"encoder_input_tokens": inputs, "decoder_input_tokens": prefixes}
        logits = model.logits(params, fed | {"decoder_target_tokens": jnp.ones_like(prefixes)})
        return jnp.take(logits, state.cur_index, axis=1), state.cache

    expected, scores = jax.jit(lambda: decoding.beam_search(jnp.zeros((2, 8), jnp.int32), {}, step, 1, 3))()
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_allclose(aux["scores"], scores, rtol=1e-4)


def test_packed_texts_have_the_logits_that_each_has_alone():
    cfg, rng = config(), np.random.default_rng(0)
    params = traverse_util.unflatten_dict(numbers(cfg), sep="/")
    inputs, targets = rng.integers(7, 50, (1, 12), np.int32), rng.integers(7, 50, (1, 10), np.int32)
    segments, of_targets = np.array([[1] * 8 + [2] * 4]), np.array([[1] * 4 + [2] * 6])
    shifted = np.pad(targets[:, :-1], ((0, 0), (1, 0)))
    shifted[0, 4] = 0
    places = np.concatenate([np.arange(4), np.arange(6)])[None]
    packed = small.call(
        cfg.network(), params, inputs, shifted, targets, encoder_segment_ids=segments, decoder_segment_ids=of_targets,
        decoder_positions=places,
    )  # fmt: skip
    for x, y in ((slice(0, 8), slice(0, 4)), (slice(8, 12), slice(4, 10))):
        alone = small.call(cfg.network(), params, inputs[:, x], shifted[:, y], targets[:, y])
        np.testing.assert_allclose(packed[:, y], alone, atol=2e-6)


def test_new_kernels_are_cut_at_two_deviations_and_of_feed_forward_the_smaller_the_deeper():
    cfg = config(emb_dim=64, num_heads=2, head_dim=32, mlp_dim=96, num_encoder_layers=1)
    tokens = np.ones((1, 1), np.int32)
    init = functools.partial(cfg.network().init, enable_dropout=False)
    params = jax.jit(init)(jax.random.key(0), tokens, tokens, tokens)["params"]
    deviation = (2 / (5 * 64)) ** 0.5
    for layer in (0, 1):
        of_layer = params["decoder"][f"layers_{layer}"]
        # The deviation of a normal distribution that is cut at two of its own.
        assert np.std(of_layer["mlp"]["wo"]["kernel"]) == pytest.approx(
            0.88 * deviation * (2 * (1 + layer)) ** -0.5, rel=0.03
        )
        assert np.std(of_layer["encoder_decoder_attention"]["key"]["kernel"]) == pytest.approx(
            0.88 * deviation, rel=0.03
        )
    assert np.abs(params["token_embedder"]["embedding"]).max() <= 2 * deviation


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logits_via_embedding": True}, "logits_via_embedding is True, and every NorT5 has False; leave it out"),
        ({"scan_layers": True}, "scan_layers is True"),
        ({"mlp_activations": ("relu",)}, "mlp_activations is"),
        ({"kernels": "fused"}, "no fused kernel has NorT5's attention; set kernels = 'auto'"),
        ({"head_dim": 4}, "num_heads is 2 and head_dim 4; their product is emb_dim, 12"),
        ({"norm_epsilon": 10**400}, "norm_epsilon is a whole number of about 401 digits; it is a number above 0"),
        ({"attention_dropout_rate": 2.0}, "attention_dropout_rate is 2.0"),
    ],
    ids=str,
)
def test_what_no_nort5_has_is_one_message(fields, message):
    with pytest.raises(ValueError, match=message):
        config(**fields)
