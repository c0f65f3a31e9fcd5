"""Networks that begin from counts, beside the factored bigram itself."""

import types
from typing import Any

import jax
import numpy as np
import pytest
from flax import traverse_util

from limba.data.contract import DatasetConfig
from limba.network import decoder_only, t5
from limba.tasks.pipeline import corpus_ngrams
from limba.training.from_counts import factored_bigram, t5_wiring, text_facts
from limba.training.from_counts.factored_bigram import BigramCounts
from limba.training.from_counts.start_from_counts import StartFromCounts
from tests.limba import small

PIECES = 128
SENTINELS = np.arange(127, 107, -1)
# Nothing but the bigram.
START = StartFromCounts(fit_steps=60, output_scale=0.0, right_rank=0)


def _config(**fields):
    return small.config(**{"vocab_size": PIECES, **small.TWO_LAYERS, **fields})


def _random(network, *shapes):
    tokens = [np.ones(shape, np.int32) for shape in shapes]
    return jax.jit(lambda key: network.init(key, *tokens, enable_dropout=False))(jax.random.key(0))["params"]


def _begun(config, counts, start=START):
    network = t5.Transformer(config)
    return network, start.from_counts(_random(network, (1, 4), (1, 4), (1, 4)), config, counts)


def _text_log_probabilities(logits, seen):
    logits = np.where(seen, np.asarray(logits, np.float64), -np.inf)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def _spans(rng):
    """Rows of text with blanks at places 3, 6 … of the inputs, and targets of three pieces for each blank."""
    inputs = rng.integers(3, 63, (4, 16)).astype(np.int32)
    blanks = np.array([3, 6, 9, 12])
    inputs[:, blanks] = SENTINELS[: len(blanks)]
    targets = rng.integers(3, 63, (4, 16)).astype(np.int32)
    targets[:, ::4] = SENTINELS[: len(blanks)]
    shifted = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
    return inputs, blanks, targets, shifted


def _nats(bigram, left, log_probabilities):
    """How far predictions are from the bigram's after `left`, on average over it."""
    expected = bigram.log_probabilities(left.ravel())[:, bigram.seen]
    found = log_probabilities.reshape(-1, len(bigram.seen))[:, bigram.seen]
    return np.mean(np.sum(np.exp(expected) * (expected - found), axis=1))


FORMS: dict[str, dict[str, Any]] = {
    "unrolled": {},
    "scanned, a table in each layer": {"scan_layers": True, "relative_bias_per_layer": True},
    "wide heads, divided queries": {"joined_attention_kernels": False, "num_heads": 6, "scale_attn_logits": True},
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", FORMS)
def test_an_encoder_decoder_predicts_what_follows_its_input_and_what_stands_before_a_blank(counts, form):
    config = _config(**FORMS[form])
    network, params = _begun(config, counts)
    rank = t5_wiring.most_rank(config)
    assert rank == 102
    bigram = factored_bigram.fit(counts, rank, t5_wiring.longest(config), START.discount, START.fit_steps)
    inputs, blanks, targets, shifted = _spans(np.random.default_rng(1))
    found = _text_log_probabilities(small.call(network, params, inputs, shifted, targets), bigram.seen)

    after_text = shifted >= 3
    after_text &= shifted < 63
    assert _nats(bigram, shifted[after_text], found[after_text]) < 0.15
    first = found[:, 1::4]  # the inputs there are sentinels
    before_blanks = inputs[:, blanks - 1]
    assert _nats(bigram, before_blanks, first) < 0.15
    # Of other pieces the same predictions say far less.
    assert _nats(bigram, np.roll(before_blanks, 1), first) > 1
    assert _nats(bigram, np.roll(shifted[after_text], 1), found[after_text]) > 1


def test_a_decoder_on_its_own_is_the_bigram(counts):
    config = decoder_only.TransformerConfig(
        vocab_size=PIECES, emb_dim=64, num_heads=2, head_dim=16, mlp_dim=32, num_layers=1, dropout_rate=0.0
    )
    network = decoder_only.DecoderWrapper(config)
    params = START.from_counts(_random(network, (1, 4), (1, 4)), config, counts)
    rank = t5_wiring.most_rank(config)
    bigram = factored_bigram.fit(counts, rank, t5_wiring.longest(config), START.discount, START.fit_steps)
    tokens = np.random.default_rng(1).integers(3, 63, (2, 8)).astype(np.int32)
    found = _text_log_probabilities(small.call(network, params, tokens, tokens), bigram.seen)
    expected = bigram.log_probabilities(tokens.ravel()).reshape(found.shape)
    np.testing.assert_allclose(found[..., bigram.seen], expected[..., bigram.seen], atol=2e-3)


def test_a_tiny_width_takes_the_rank_that_it_has_room_for(counts):
    config = _config(**small.TINY)
    assert t5_wiring.most_rank(config) == 10
    network, params = _begun(config, counts)
    inputs, _, targets, shifted = _spans(np.random.default_rng(1))
    assert np.isfinite(small.call(network, params, inputs, shifted, targets)).all()
    rows = np.sqrt(np.mean(np.square(params["token_embedder"]["embedding"]), axis=1))
    np.testing.assert_allclose(rows, 1, atol=1e-2)


def test_a_start_is_the_same_twice_and_leaves_the_given_parameters_alone(counts):
    config = _config(**small.TINY)
    given = jax.device_get(_random(t5.Transformer(config), (1, 4), (1, 4), (1, 4)))
    before = jax.tree.map(np.array, given)
    start = StartFromCounts(fit_steps=5)
    first, second = (start.from_counts(given, config, counts) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    jax.tree.map(np.testing.assert_array_equal, given, before)
    out = "decoder/layers_0/mlp/wo/kernel"
    flat, old = (traverse_util.flatten_dict(x, sep="/") for x in (first, before))
    np.testing.assert_array_equal(flat[out], old[out] * np.float32(0.2))


class _Counted:
    def __init__(self, counts):
        self.unigrams, self.num_tokens = counts.unigrams, int(counts.unigrams.sum())
        self.bigrams = counts
        self.targets = self.firsts = np.zeros(PIECES, np.int64)


def test_a_start_says_what_it_fits(counts, caplog):
    caplog.set_level("INFO")
    _begun(_config(), counts, StartFromCounts(fit_steps=3, right_rank=0))
    assert f"fits a bigram of rank 102 to {len(counts.keys):,} pairs of pieces, in 3 steps." in caplog.text


def test_a_start_counts_the_training_split_with_the_models_vocabulary(counts, monkeypatch):
    asked = []

    class Ngrams:
        @staticmethod
        def count(config, vocabulary, feature_converter, most_tokens, trigrams, before):
            assert not trigrams and not before
            asked.append((config, vocabulary, feature_converter, most_tokens))
            return _Counted(counts)

    monkeypatch.setattr(corpus_ngrams, "count", Ngrams.count)
    monkeypatch.setattr(text_facts, "of_split", lambda *_: None)
    model = small.model(vocab_size=PIECES, **small.TINY)
    dataset = DatasetConfig("counter", {"inputs": 16, "targets": 8}, "train", 8, seed=0)
    params = _random(model.module, (1, 4), (1, 4), (1, 4))
    new = StartFromCounts(fit_steps=0, most_tokens=50)(params, model, dataset)
    assert asked == [(dataset, model.output_vocabulary, model.FEATURE_CONVERTER_CLS, 50)]
    expected = StartFromCounts(fit_steps=0).from_counts(params, model.module.config, counts)
    jax.tree.map(np.testing.assert_array_equal, new, expected)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"logits_via_embedding": True}, "logits_via_embedding is True, .* set it to False, or bind None"),
        ({"emb_dim": 4}, "emb_dim is 4; it takes at least 8"),
        ({"kernels": "xla", "decoder_self_attention_layer": "mine:Own"}, "decoder_self_attention_layer is 'mine:Own'"),
    ],
)
def test_networks_that_cannot_begin_so_are_refused_with_the_field(fields, said):
    with pytest.raises(ValueError, match=r"^A start from counts \(train.initial_values_fn\): .*" + said):
        START.check(_model(t5.Transformer(_config(**fields))))


def _model(module):
    return types.SimpleNamespace(module=module, input_vocabulary="one", output_vocabulary="one")


def test_other_networks_ranks_and_numbers_are_refused(counts):
    with pytest.raises(ValueError, match=r"the network is of a NoneType; it is for T5 1\.1, its decoders"):
        START.check(_model(None))
    wide = _model(t5.Transformer(_config(emb_dim=512)))
    left = {"right_rank": 0}
    StartFromCounts(rank=400, **left).check(wide)
    with pytest.raises(ValueError, match=r"rank is 487; a width \(emb_dim\) of 512 has room for 1 to 486"):
        StartFromCounts(rank=487, **left).check(wide)
    assert [StartFromCounts(rank=rank, **left)._rank(wide.module.config) for rank in (None, 400)] == [256, 400]
    with pytest.raises(ValueError, match="discount is 1; it is a number above 0 and below 1"):
        StartFromCounts(discount=1)
    with pytest.raises(ValueError, match="fit_steps is -1; it is a whole number of at least 0"):
        StartFromCounts(fit_steps=-1)
    none = BigramCounts(np.zeros(PIECES, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    with pytest.raises(ValueError, match="the training split has no two pairs of pieces in it"):
        START.from_counts({}, _config(), none)
