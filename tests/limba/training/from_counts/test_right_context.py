"""A T5 that begins from counts of both sides of a blank, beside the products of the two factored bigrams."""

import types
from typing import Any

import jax
import numpy as np
import pytest

from limba.data import sentinels
from limba.data.contract import DatasetConfig
from limba.network import decoder_only, t5
from limba.tasks.pipeline import corpus_ngrams
from limba.training.from_counts import factored_bigram, right_context, text_facts
from limba.training.from_counts.factored_bigram import BigramCounts
from limba.training.from_counts.span_ends import SpanEnds
from limba.training.from_counts.start_from_counts import StartFromCounts
from tests.limba import small

PIECES = 128
SEEN = slice(3, 63)
SENTINELS = np.arange(127, 107, -1)
# Nothing but what was counted.
START = StartFromCounts(fit_steps=60, output_scale=0.0)
FORMS: dict[str, dict[str, Any]] = {
    "scanned, a table in each layer": {"scan_layers": True, "relative_bias_per_layer": True},
    "wide heads, divided queries": {"joined_attention_kernels": False, "num_heads": 6, "scale_attn_logits": True},
}


def _counted(first, second):
    keys, counts = np.unique(first * PIECES + second, return_counts=True)
    return types.SimpleNamespace(keys=keys, counts=counts)


@pytest.fixture(scope="module")
def counted(text):
    """As `NgramCounts` has it."""
    return types.SimpleNamespace(
        unigrams=np.bincount(text, minlength=PIECES),
        num_tokens=len(text),
        bigrams=_counted(text[:-1], text[1:]),
        before=[_counted(text[distance:], text[:-distance]) for distance in (1, 2, 3)],
        targets=np.bincount([*SENTINELS[:6]] * 100 + [1] * 100 + [9] * 1800, minlength=PIECES),
        firsts=np.bincount([SENTINELS[0]] * 100, minlength=PIECES),
    )


@pytest.fixture(scope="module")
def counts(counted):
    """Of pieces that follow, and of pieces that stand before."""
    follows = BigramCounts(counted.unigrams, counted.bigrams.keys, counted.bigrams.counts)
    return follows, right_context.pairs(counted.unigrams, counted.before)


def _random(network):
    tokens = np.ones((1, 4), np.int32)
    return jax.jit(lambda key: network.init(key, tokens, tokens, tokens, enable_dropout=False))(jax.random.key(0))[
        "params"
    ]


def _spans(rng):
    """Rows of text with a blank at every third place of the inputs, and targets of three pieces for each blank."""
    inputs = rng.integers(3, 63, (8, 19)).astype(np.int32)
    blanks = np.arange(3, 18, 3)
    inputs[:, blanks] = SENTINELS[: len(blanks)]
    targets = rng.integers(3, 63, (8, 4 * len(blanks))).astype(np.int32)
    targets[:, ::4] = SENTINELS[: len(blanks)]
    return inputs, blanks, targets, np.pad(targets, ((0, 0), (1, 0)))[:, :-1]


def _log_softmax(logits):
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def _divergence(expected, found):
    return np.mean(np.sum(np.exp(expected) * (expected - found), axis=-1))


@pytest.mark.parametrize("form", FORMS)
def test_each_piece_of_a_blank_is_what_the_pieces_before_it_and_behind_the_blank_say(counts, form):
    config = small.config(vocab_size=PIECES, **small.TWO_LAYERS, **FORMS[form])
    network = t5.Transformer(config)
    params = START.from_counts(_random(network), config, *counts)
    longest = right_context.longest(config)
    ranks = START._rank(config), START._right_rank(config)
    bigram, behind = (factored_bigram.fit(*x, 0.75, 60) for x in zip(counts, ranks, longest, strict=True))
    inputs, blanks, targets, shifted = _spans(np.random.default_rng(1))
    logits = np.asarray(small.call(network, params, inputs, shifted, targets), np.float64)[..., SEEN]
    # [row, blank, piece of its span, vocabulary]; the first piece of a span is predicted at its sentinel.
    found = np.stack([_log_softmax(logits[:, place::4]) for place in (1, 2, 3)], axis=2)
    before = np.stack([inputs[:, blanks - 1], shifted[:, 2::4], shifted[:, 3::4]], axis=2)

    def expected(before, after):
        of_right = right_context._WEIGHT * (behind.left[after] @ behind.right.T)
        return _log_softmax((bigram.left[before] @ bigram.right.T + bigram.bias + of_right[:, :, None])[..., SEEN])

    after = inputs[:, blanks + 1]
    for place in range(3):
        assert _divergence(expected(before, after)[:, :, place], found[:, :, place]) < 0.2
        # Of other pieces behind blanks the same predictions say far less, and of other pieces before.
        assert _divergence(expected(before, np.roll(after, 1, axis=1))[:, :, place], found[:, :, place]) > 0.5
        assert _divergence(expected(np.roll(before, 1, axis=1), after)[:, :, place], found[:, :, place]) > 0.5


def test_pairs_weigh_as_spans_of_three_pieces_on_average_have_them():
    before = [
        types.SimpleNamespace(keys=np.array(keys), counts=np.array(n)) for keys, n in (([1, 5], [9, 3]), ([5], [6]))
    ]
    pairs = right_context.pairs(np.ones(4, int), before)
    assert pairs.keys.tolist() == [1, 5]
    np.testing.assert_allclose(pairs.counts, [9, 3 + 6 * 2 / 3])


def test_codes_of_consecutive_sentinels_are_orthogonal_and_rows_have_one_length(counts):
    config = small.config(vocab_size=PIECES)
    rows = START.from_counts(_random(t5.Transformer(config)), config, *counts)["token_embedder"]["embedding"]
    np.testing.assert_allclose(np.sqrt(np.mean(np.square(rows), axis=1)), 1, atol=1e-5)
    codes = rows[SENTINELS[:12], 87:99]
    np.testing.assert_allclose(codes @ codes.T, np.eye(12) * 0.6 * 128, atol=1e-3)
    assert np.abs(rows[SEEN, 86:]).max() == 0


def test_random_kernels_hardly_add_to_what_the_logits_read(counts):
    config = small.config(vocab_size=PIECES)
    given = jax.device_get(_random(t5.Transformer(config)))
    new = StartFromCounts(fit_steps=2, output_scale=0.5).from_counts(given, config, *counts)
    before, after = (x["decoder"]["layers_0"]["mlp"]["wo"]["kernel"] for x in (given, new))
    factors = 59 + 25  # there are 60 pieces
    np.testing.assert_allclose(after[:, 2 : 2 + factors], 0.05 * before[:, 2 : 2 + factors], rtol=1e-5)
    np.testing.assert_allclose(after[:, 2 + factors :], 0.5 * before[:, 2 + factors :], rtol=1e-5)


def test_a_start_counts_what_stands_before_pieces_too(counted, counts, monkeypatch):
    asked = []

    class Ngrams:
        @staticmethod
        def count(trigrams, before, **_):
            asked.append((trigrams, before))
            return counted

    monkeypatch.setattr(corpus_ngrams, "count", Ngrams.count)
    monkeypatch.setattr(text_facts, "of_split", lambda *_: None)
    model = small.model(vocab_size=PIECES, emb_dim=128, num_heads=4, head_dim=32)
    params, start = _random(model.module), StartFromCounts(fit_steps=0)
    new = start(params, model, DatasetConfig("counter", {"inputs": 16, "targets": 8}, "train", 8, seed=0))
    assert asked == [(False, True)]
    ends = SpanEnds.of(counted.targets, counted.firsts, sentinels.of_vocabulary(model.output_vocabulary), 1)
    jax.tree.map(np.testing.assert_array_equal, new, start.from_counts(params, model.module.config, *counts, ends))


def test_spans_end_as_often_as_counted_with_the_sentinel_that_is_next(counts, counted, text):
    """The predictions of the whole targets: sentinels, EOS and text."""
    ends = SpanEnds.of(counted.targets, counted.firsts, SENTINELS, 1)
    # 600 ends of 1,800 pieces of text, 100 of them of the targets.
    assert (ends.end, ends.eos) == (1 / 3, 1 / 6)
    config = small.config(vocab_size=PIECES, **small.TWO_LAYERS)
    network = t5.Transformer(config)
    params = START.from_counts(_random(network), config, *counts, ends)
    inputs, blanks, targets, shifted = _spans(np.random.default_rng(1))
    for row, place in enumerate(range(0, 8000, 1000)):  # of the text, where _spans has any pieces
        for span, blank in enumerate(blanks):
            begin = place + 5 * span
            inputs[row, blank - 2 : blank] = text[begin : begin + 2]
            targets[row, 4 * span + 1 : 4 * span + 4] = text[begin + 2 : begin + 5]
    shifted = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
    logits = np.asarray(small.call(network, params, inputs, shifted, targets), np.float64)
    found = np.exp(_log_softmax(logits))
    is_sentinel = np.isin(np.arange(PIECES), SENTINELS)
    assert found[:, 0, SENTINELS[0]].min() > 0.99  # where targets begin
    assert found[:, 1::4, is_sentinel].sum(axis=-1).max() < 0.01 and found[:, 1::4, 1].max() < 0.01  # no span is empty
    following, others, eos = [], [], []
    for place in (2, 3, 4):
        behind_text = found[:, place::4][:, : len(blanks) - 1]
        following.append(behind_text[:, np.arange(len(blanks) - 1), SENTINELS[1 : len(blanks)]].mean())
        others.append(behind_text[..., is_sentinel].sum(axis=-1).mean() - following[-1])
        eos.append(behind_text[..., 1].mean())
    np.testing.assert_allclose(following[:2], 5 / 18, atol=0.08)
    np.testing.assert_allclose(eos[:2], 1 / 18, atol=0.03)
    assert max(others) < 0.01
    # Nothing fits between the last piece of a span and the one behind the blank.
    assert following[2] > 0.5


@pytest.mark.parametrize(
    ("targets", "firsts"),
    [
        ({9: 100, 1: 10}, {9: 10}),  # a prefix language model
        ({127: 10, 9: 5, 1: 10}, {127: 10}),  # more ends than text
        ({127: 10, 9: 50}, {127: 10}),  # neither EOS nor a second span
    ],
)
def test_targets_without_spans_have_no_ends(targets, firsts):
    made = (np.array([of.get(id_, 0) for id_ in range(PIECES)]) for of in (targets, firsts))
    assert SpanEnds.of(*made, SENTINELS, 1) is None


def _right_rank(config, **fields):
    return StartFromCounts(**fields)._right_rank(config)


def test_networks_without_room_or_blanks_leave_the_piece_behind_out():
    assert [StartFromCounts()._rank(small.config()), _right_rank(small.config())] == [76, 25]
    assert [StartFromCounts(right_rank=0)._rank(small.config()), _right_rank(small.config(), right_rank=0)] == [102, 0]
    assert _right_rank(small.config(emb_dim=768, num_heads=12, head_dim=64)) == 64
    assert _right_rank(small.config(**small.TINY)) == _right_rank(small.config(num_heads=2)) == 0
    assert _right_rank(small.config(num_encoder_layers=0)) == 0
    assert _right_rank(decoder_only.TransformerConfig(vocab_size=PIECES, emb_dim=128, num_heads=4, head_dim=32)) == 0


@pytest.mark.parametrize(
    ("fields", "config", "said"),
    [
        ({"right_rank": 33}, {}, "right_rank is 33; this network has room for 32"),
        ({"right_rank": 1}, {"num_heads": 2}, "right_rank is 1; this network has room for 0"),
        ({"right_rank": -1}, {}, "right_rank is -1; this"),
        ({"rank": 77}, {}, r"rank is 77; a width \(emb_dim\) of 128 has room for 1 to 76 beside 25 of the piece behin"),
    ],
)
def test_ranks_without_room_are_refused(fields, config, said):
    with pytest.raises(ValueError, match=said):
        StartFromCounts(**fields).check(types.SimpleNamespace(module=t5.Transformer(small.config(**config))))
