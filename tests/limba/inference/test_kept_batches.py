"""Evaluation batches that stay on the devices: read once, the same metrics, no more than there is room for."""

import itertools

import jax
import numpy as np
import pytest

from limba.inference import evaluation, kept_batches
from limba.models.metrics import Ratio
from limba.partitioning.meshes import PjitPartitioner

NUM_BATCHES, ROWS, LENGTH = 5, 8, 4


class _Source:
    """Batches of this host; `reads` counts those that were made."""

    def __init__(self, is_cached=True):
        self.reads, self.is_cached = 0, is_cached

    def __iter__(self):
        for number in range(NUM_BATCHES):
            self.reads += 1
            targets = np.random.default_rng(number).integers(0, 9 + number, (ROWS, LENGTH), np.int32)
            yield {"decoder_target_tokens": targets, "decoder_loss_weights": (targets > 0).astype(np.int32)}


def _sum_step(params, batch):
    return {"sum": Ratio(jax.numpy.sum(batch["decoder_target_tokens"] * params), 1.0)}


def _kept(source):
    return kept_batches.keep({"a": source}, PjitPartitioner(num_partitions=1, devices=jax.devices()[:2]))["a"]


def _evaluate(batches, params=1, most=None):
    scalars = evaluation.evaluate(_sum_step, params, batches, most, None)
    return scalars["sum"], scalars["unigram_nats_per_target_token"]


def _expected(most=NUM_BATCHES):
    batches = [batch["decoder_target_tokens"] for batch in itertools.islice(_Source(), most)]
    shares = np.bincount(np.concatenate(batches).ravel())[1:] / sum((batch > 0).sum() for batch in batches)
    shares = shares[shares > 0]
    return sum(int(batch.sum()) for batch in batches) / len(batches), -np.sum(shares * np.log(shares))


def test_batches_are_read_once_and_stay():
    source = _Source()
    batches = _kept(source)
    assert _evaluate(batches) == pytest.approx(_expected())
    first = [batch.placed["decoder_target_tokens"] for batch in batches]
    assert _evaluate(batches, params=3) == pytest.approx((3 * _expected()[0], _expected()[1]))
    assert source.reads == NUM_BATCHES
    for array, batch in zip(first, batches, strict=True):
        assert batch.placed["decoder_target_tokens"] is array
        assert len(array.sharding.device_set) == 2


def test_a_longer_evaluation_reads_on():
    source = _Source()
    batches = _kept(source)
    assert _evaluate(batches, most=2) == pytest.approx(_expected(2))
    assert _evaluate(batches, most=2) == pytest.approx(_expected(2))
    assert source.reads == 2
    assert _evaluate(batches) == pytest.approx(_expected())
    assert _evaluate(batches) == pytest.approx(_expected())
    assert source.reads == 2 + NUM_BATCHES


@pytest.mark.parametrize("room", [0, 3])
def test_what_there_is_no_room_for_is_read_again(monkeypatch, room):
    """Each batch has two arrays of 64 bytes on each of two devices."""
    monkeypatch.setattr(kept_batches, "_MOST_BYTES", room * 128)
    source = _Source()
    batches = _kept(source)
    for _ in range(2):
        assert _evaluate(batches) == pytest.approx(_expected())
    assert source.reads == 2 * NUM_BATCHES
    assert len(batches._kept) == room


def test_batches_that_may_change_are_read_again():
    source = _Source(is_cached=False)
    batches = _kept(source)
    for _ in range(2):
        assert _evaluate(batches) == pytest.approx(_expected())
    assert source.reads == 2 * NUM_BATCHES and not batches._kept


def test_a_model_is_told_that_nothing_was_evaluated():
    with pytest.raises(ValueError, match="split is empty"):
        evaluation.evaluate(_sum_step, 1, [], None, None)
