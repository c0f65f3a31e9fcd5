import math

import pytest

from benchmarks import half_precision


@pytest.mark.exhaustive
def test_rows_are_padded_and_a_step_is_made():
    batch = half_precision.MarkovRows().batch(3)
    lengths = (batch["encoder_input_tokens"] > 0).sum(axis=1)
    assert lengths.min() < 64 < lengths.max() <= 128 and (batch["decoder_target_tokens"] >= 2).all()
    result = half_precision.held_out_loss("adamw", "bfloat16", 1)
    assert result["first_step_not_finite"] is None
    assert 0.7 * math.log(half_precision.VOCAB_SIZE) < result["loss"] < 2 * math.log(half_precision.VOCAB_SIZE)
