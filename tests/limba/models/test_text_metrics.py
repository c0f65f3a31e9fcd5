"""Figures of text targets, beside those that NumPy makes of the same logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from limba.data import text_pieces
from limba.models import losses, metrics, text_metrics
from limba.network.kernels.linear_cross_entropy import LinearLogits
from tests.limba import small

# Rows of FixedVocabulary: 256 pieces, the last 100 are sentinels; the table has 32 rows more.
ROWS = 288
TARGETS = np.array(
    [
        [255, 7, 8, 9, 254, 10, 1, 0],  # two spans and EOS
        [11, 12, 13, 1, 0, 0, 0, 0],  # a text without spans
        [255, 254, 30, 31, 32, 33, 34, 1],
    ]
)


@pytest.fixture(scope="module")
def logits():
    rng = np.random.default_rng(0)
    made = rng.normal(size=(*TARGETS.shape, ROWS)).astype(np.float32)
    made[0, 1, 7] = 9  # one is the likeliest, one among the five likeliest
    made[0, 2, [8, 20, 21]] = 8, 9, 10
    made[0, 3, [9, 200]] = 9, 10  # only a sentinel is likelier
    made[1, 0] = 0  # all alike: the first is the likeliest
    return made


def _by_hand(logits):
    nats = np.log(np.exp(logits).sum(axis=-1)) - np.take_along_axis(logits, TARGETS[..., None], -1)[..., 0]
    is_text = np.zeros(ROWS, bool)
    is_text[2:156] = True
    text = is_text[TARGETS]
    text_sum = np.log(np.exp(np.where(is_text, logits, -np.inf)).sum(axis=-1))
    renormalized = text_sum - np.take_along_axis(logits, TARGETS[..., None], -1)[..., 0]
    order = np.argsort(-logits, axis=-1, kind="stable")
    rank = np.argmax(order == TARGETS[..., None], axis=-1)
    order = np.argsort(np.where(is_text, -logits, np.inf), axis=-1, kind="stable")
    rank_in_text = np.argmax(order == TARGETS[..., None], axis=-1)
    first = np.zeros(TARGETS.shape, bool)
    first[[0, 0, 2], [1, 5, 2]] = True
    later = np.zeros(TARGETS.shape, bool)
    later[[0, 0, 2, 2, 2, 2], [2, 3, 3, 4, 5, 6]] = True
    return {
        "nats_per_text_token": nats[text].mean(),
        "nats_per_text_token_renormalized": renormalized[text].mean(),
        "text_accuracy": np.mean(rank[text] == 0),
        "text_top_5_accuracy": np.mean(rank[text] < 5),
        "text_accuracy_renormalized": np.mean(rank_in_text[text] == 0),
        "text_top_5_accuracy_renormalized": np.mean(rank_in_text[text] < 5),
        "num_text_tokens": 12,
        "nats_per_text_token/first_of_span": nats[first].mean(),
        "nats_per_text_token/later_in_span": nats[later].mean(),
        "nats_per_sentinel": nats[TARGETS >= 156].mean(),
        "nats_per_eos": nats[TARGETS == 1].mean(),
    }


def test_figures_are_those_of_numpy(logits):
    counted = (TARGETS != 0).astype(np.float32)
    found = text_metrics.text_metrics(jnp.asarray(logits), jnp.asarray(TARGETS), counted, small.FixedVocabulary())
    expected = _by_hand(logits)
    assert 0 < expected["text_accuracy"] < expected["text_accuracy_renormalized"]
    assert expected["text_top_5_accuracy"] <= expected["text_top_5_accuracy_renormalized"] < 1
    assert metrics.compute({"text": found}) == pytest.approx(expected, rel=1e-5)
    # Batches add up.
    twice = metrics.add({"text": found}, {"text": found})
    assert metrics.compute(twice) == pytest.approx(expected | {"num_text_tokens": 24}, rel=1e-5)


def test_without_text_targets_there_are_no_figures(logits):
    counted = (TARGETS == 255).astype(np.float32)
    found = text_metrics.text_metrics(jnp.asarray(logits), jnp.asarray(TARGETS), counted, small.FixedVocabulary())
    assert metrics.compute({"text": found}).keys() == {"nats_per_sentinel"}


@pytest.mark.parametrize("vocab_axis", [0, 1])
def test_logits_that_are_not_made_have_the_same_scores(vocab_axis, monkeypatch):
    monkeypatch.setattr("limba.network.kernels.linear_cross_entropy.CHUNK_BYTES", 4 * TARGETS.size * 40)
    rng = np.random.default_rng(1)
    states = rng.normal(size=(*TARGETS.shape, 16)).astype(np.float32)
    kernel = rng.normal(size=(16, ROWS)).astype(np.float32)
    kernel[:, 100] = kernel[:, 7]  # one target is as likely as another piece
    is_text = text_pieces.of_vocabulary(small.FixedVocabulary(), ROWS)
    linear = LinearLogits(states, kernel if vocab_axis else kernel.T, vocab_axis=vocab_axis, scale=0.5)
    made = jax.jit(lambda: losses.text_scores(linear, TARGETS, is_text))()
    expected = losses.text_scores(jnp.asarray(0.5 * states @ kernel), TARGETS, is_text)
    for name in ("log_z", "log_z_of_text", "of_target"):
        np.testing.assert_allclose(getattr(made, name), getattr(expected, name), rtol=2e-5, atol=2e-5)
    assert np.array_equal(made.rank, expected.rank) and len(np.unique(made.rank)) > 10
    assert np.array_equal(made.rank_in_text, expected.rank_in_text) and np.any(made.rank_in_text < made.rank)
