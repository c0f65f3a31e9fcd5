"""Encoders that begin from counts, beside the products of the bigram's own probabilities."""

import types
from typing import Any

import jax
import numpy as np
import pytest
from flax import traverse_util

from limba.network.encoders.classifier import SequenceClassifier
from limba.network.encoders.config import EncoderConfig
from limba.network.encoders.encoder import MaskedLanguageModel
from limba.training.from_counts import encoder_wiring, factored_bigram, neighbours
from limba.training.from_counts.start_from_counts import StartFromCounts
from tests.limba import small

PIECES, MASK = 128, 1
SEEN = slice(3, 63)
# Nothing but the bigram.
START = StartFromCounts(fit_steps=60, output_scale=0.0)
BERT = {"num_token_types": 2}
MODERNBERT = {
    "attention_bias": False,
    "mlp_bias": False,
    "head_bias": False,
    "norm": "layer_norm_without_bias",
    "norm_position": "pre",
    "first_attention_norm": False,
    "position_embedding_type": "rotary",
    "rotary_base": 160000.0,
    "global_attention_every": 3,
    "num_layers": 7,
    "mlp_activations": ("gelu", "linear"),
}
FORMS: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "bert, scanned, wider heads than the width": {**BERT, "scan_layers": True, "head_dim": 32},
    "roformer": {"position_embedding_type": "rotary", "rotary_pairs": "interleaved", "rotary_dim": 16},
    "modernbert": MODERNBERT,
    "modernbert, scanned": {**MODERNBERT, "scan_layers": True, "num_layers": 6, "first_attention_norm": True},
    "roberta_prelayernorm": {"norm_position": "pre", "norm_epsilon": 1e-5},
}


def _config(**fields):
    sizes = {"vocab_size": PIECES, "emb_dim": 128, "num_heads": 4, "head_dim": 24, "mlp_dim": 64, "num_layers": 2}
    return EncoderConfig(**{**sizes, "max_positions": 64, "kernels": "xla", **fields})


def _random(network):
    tokens = np.ones((1, 4), np.int32)
    return jax.device_get(jax.jit(lambda key: network.init(key, tokens, enable_dropout=False))(jax.random.key(0)))[
        "params"
    ]


def _log_probabilities(network, params, tokens):
    """Of the seen pieces, at all places."""
    logits = np.asarray(small.call(network, params, tokens), np.float64)[..., SEEN]
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def _masked(rng):
    """Rows with a mask at every fourth place."""
    tokens = rng.integers(3, 63, (8, 64)).astype(np.int32)
    tokens[:, 2::4] = MASK
    return tokens


def _divergence(expected, found):
    return np.mean(np.sum(np.exp(expected) * (expected - found), axis=-1))


@pytest.mark.sample(3)
@pytest.mark.parametrize("form", FORMS)
def test_a_masked_piece_is_what_both_neighbours_say(counts, form):
    config = _config(**FORMS[form])
    network = MaskedLanguageModel(config)
    params = START.from_counts(_random(network), config, counts)
    bigram = factored_bigram.fit(counts, START._rank(config), encoder_wiring.longest(config), 0.75, 60)
    of_next = bigram.log_probabilities(np.arange(3, 63))[:, SEEN]
    tokens = _masked(np.random.default_rng(1))
    before, after = tokens[:, 1::4] - 3, tokens[:, 3::4] - 3
    expected = of_next[before] + np.moveaxis(of_next[:, after], 0, -1)
    expected -= np.log(np.exp(expected).sum(axis=-1, keepdims=True))
    found = _log_probabilities(network, params, tokens)[:, 2::4]
    assert _divergence(expected, found) < 0.2
    # Of other neighbours, and of one of them alone, the same predictions say far less.
    assert _divergence(np.roll(expected, 1, axis=1), found) > 2
    assert _divergence(of_next[before], found) > 0.5


def test_a_piece_that_is_not_masked_is_likely(counts):
    config = _config(**BERT)
    network = MaskedLanguageModel(config)
    params = START.from_counts(_random(network), config, counts)
    tokens = np.random.default_rng(1).integers(3, 63, (8, 64)).astype(np.int32)
    found = _log_probabilities(network, params, tokens)
    own = np.take_along_axis(found, tokens[..., None] - 3, axis=-1)
    assert own.mean() > np.log(1 / 60) + 1


def test_one_head_looks_to_the_left_and_other_pieces_stay_unlikely(counts):
    config = _config(num_heads=1, head_dim=64)
    network = MaskedLanguageModel(config)
    params = START.from_counts(_random(network), config, counts)
    bigram = factored_bigram.fit(counts, START._rank(config), encoder_wiring.longest(config), 0.75, 60)
    tokens = _masked(np.random.default_rng(1))
    expected = bigram.log_probabilities(tokens[:, 1::4].ravel())[:, SEEN]
    found = _log_probabilities(network, params, tokens)[:, 2::4].reshape(expected.shape)
    assert _divergence(expected, found) < 0.1
    logits = small.call(network, params, tokens)[:, 2::4]
    others = np.delete(jax.nn.softmax(logits, axis=-1), np.arange(3, 63), axis=-1).sum(axis=-1)
    assert 1e-6 < others.mean() < 1e-3


def test_rows_of_the_table_have_one_length_and_no_mean(counts):
    config = _config(**BERT)
    params = START.from_counts(_random(MaskedLanguageModel(config)), config, counts)
    flat = traverse_util.flatten_dict(params, sep="/")
    rows, codes = flat["token_embedder/embedding"], flat["encoder/position_embedder/embedding"]
    np.testing.assert_allclose(np.square(rows).sum(axis=1), 128 * 7 / 8, rtol=1e-5)
    np.testing.assert_allclose(np.square(codes).sum(axis=1), 128 / 8, rtol=1e-5)
    np.testing.assert_allclose(rows.sum(axis=1), 0, atol=1e-4)
    np.testing.assert_allclose(rows @ codes.T, 0, atol=1e-4)
    assert len(np.unique(rows.round(3), axis=0)) == PIECES


@pytest.mark.parametrize("length", [64, 512, 4096])
def test_attention_is_on_the_neighbour_in_rows_of_any_length(length):
    beside = neighbours.neighbours(_config(max_positions=length, head_dim=32), np.random.default_rng(0))
    query, key = beside.of_codes(-1, 16.0, 32)
    codes = beside.codes(length, 16.0)
    logits = (codes @ query)[[1, length // 2, length - 1]] @ (codes @ key).T / np.sqrt(32)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    assert list(weights.argmax(axis=1)) == [0, length // 2 - 1, length - 2]
    assert weights.max(axis=1).min() > 0.94


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"position_embedding_type": "relative_key"},
            "position_embedding_type is 'relative_key'; it is for 'absolute'",
        ),
        ({"norm": "rms_norm"}, "norm is 'rms_norm'"),
        ({"head_activation": None}, "the head has no transform"),
        ({"head_activation": "tanh"}, "head_activation is 'tanh', which bends large numbers"),
        ({"emb_dim": 8}, "emb_dim is 8; it takes at least 16"),
    ],
)
def test_encoders_that_cannot_begin_so_are_refused_with_the_field(fields, said):
    model = types.SimpleNamespace(module=MaskedLanguageModel(_config(**fields)))
    with pytest.raises(ValueError, match=r"^A start from counts \(train.initial_values_fn\): .*" + said):
        START.check(model)


def test_a_classifier_and_a_rank_without_room_are_refused():
    with pytest.raises(
        ValueError, match="the network is a SequenceClassifier; of encoders it is for MaskedLanguageModel"
    ):
        START.check(types.SimpleNamespace(module=SequenceClassifier(_config(), 2)))
    with pytest.raises(ValueError, match=r"rank is 51; a width \(emb_dim\) of 128 has room for 1 to 50"):
        StartFromCounts(rank=51).check(types.SimpleNamespace(module=MaskedLanguageModel(_config(head_dim=32))))


def test_what_was_given_stays_as_it_is_and_a_start_is_the_same_twice(counts):
    config = _config(**BERT)
    given = _random(MaskedLanguageModel(config))
    before = jax.tree.map(np.array, given)
    start = StartFromCounts(fit_steps=3)
    first, second = (start.from_counts(given, config, counts) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    jax.tree.map(np.testing.assert_array_equal, given, before)
    wo = "encoder/layers_1/mlp/wo/kernel"
    new, old = (traverse_util.flatten_dict(x, sep="/") for x in (first, before))
    np.testing.assert_array_equal(new[wo], old[wo] * np.float32(0.2))
