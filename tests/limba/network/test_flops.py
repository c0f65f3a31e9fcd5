"""FLOPs of a network so small that they are added up by hand; XLA's own count is compared in the tests of `plan`."""

import pytest

from limba.network import flops

SIZES = {
    "emb_dim": 2,
    "num_heads": 1,
    "head_dim": 3,
    "mlp_dim": 5,
    "mlp_activations": ("relu",),
    "vocab_size": 7,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
}
# Of 4 inputs and 6 targets: projections and feed-forward, what cross-attention projects of the inputs, attention.
ENCODER = 2 * 4 * (24 + 20) + 192
DECODER = 2 * 6 * (36 + 20) + 4 * 4 * 6 + (432 + 288)
LOGITS = 168


def test_forward_flops_by_hand():
    assert (ENCODER, DECODER) == (544, 1488)
    assert flops.forward_flops(SIZES, 4, 6) == ENCODER + 2 * DECODER + LOGITS == 3688
    assert flops.forward_flops(SIZES | {"seen_keys": 2}, 4, 6) == 3688 - 96
    # A third of the keys and values, of inputs and, in each decoder layer, of targets and of inputs.
    fewer = 2 * 4 * 8 + 2 * (2 * 6 * 8 + 2 * 4 * 8)
    assert flops.forward_flops(SIZES | {"num_heads": 3, "head_dim": 1, "num_kv_heads": 1}, 4, 6) == 3688 - fewer
    gemma = {"num_heads": 3, "head_dim": 1, "gemma_layers": {"num_kv_heads": 1}}
    assert flops.forward_flops(SIZES | gemma, 4, 6) == 3688 - fewer
    # A decoder layer has one query and one output for each target, not two.
    merged = {"gemma_layers": {"merged_attention": True}}
    assert flops.forward_flops(SIZES | merged, 4, 6) == 3688 - 2 * (2 * 6 * 2 * 6)


@pytest.mark.parametrize(
    ("policy", "expected"), [(None, 0), ("none", 0), ("minimal", 192 + 2 * 720), ("full", 3688 - LOGITS)]
)
def test_recomputed_flops_by_hand(policy, expected):
    assert flops.recomputed_flops(SIZES, 4, 6, policy) == expected


def test_an_unknown_policy_has_none():
    with pytest.raises(ValueError, match="remat policy 'half'"):
        flops.recomputed_flops(SIZES, 4, 6, "half")
