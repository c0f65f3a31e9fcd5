"""The benchmark of a BERT's step at a tiny size: what it trains on, and that it trains."""

import numpy as np

from benchmarks import encoder_step

SIZES = {
    "vocab_size": 64,
    "emb_dim": 16,
    "num_heads": 2,
    "head_dim": 8,
    "num_layers": 1,
    "mlp_dim": 16,
    "num_token_types": 2,
}


def test_rows_have_their_share_of_masks():
    rows = encoder_step.Workload(SIZES, "float32", 3, 102).batch()
    assert rows["places"].shape == (3, 15)
    assert (np.diff(rows["places"]) > 0).all() and rows["places"].min() > 0 and rows["places"].max() < 101
    assert (rows["inputs"] == encoder_step.MASK_ID).sum() == 45
    assert (np.take_along_axis(rows["inputs"], rows["places"], 1) == encoder_step.MASK_ID).all()
    assert rows["targets"].min() > encoder_step.MASK_ID


def test_limba_trains():
    run, facts = encoder_step._limba(encoder_step.Workload(SIZES, "float32", 2, 16))
    run(2)
    tables = (64 + 16 + 2) * 16 + 2 * 16  # with their norm
    layer = 4 * (16 * 16 + 16) + 2 * (16 * 16 + 16) + 2 * 2 * 16
    head = 16 * 16 + 16 + 2 * 16 + 64
    assert facts["parameters"] == tables + layer + head
