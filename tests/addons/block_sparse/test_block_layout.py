import dataclasses

import numpy as np
import pytest

from limba.addons.block_sparse.block_layout import BigBirdSparsityConfig, BlockLayout
from limba.network.encoders.config import EncoderConfig

RANDOM_BLOCKS = [
    [3, 7],
    [3, 4],
    [1, 7],
    [10, 11],
    [9, 10],
    [0, 5],
    [0, 3],
    [1, 5],
    [1, 8],
    [1, 8],
    [7, 10],
    [7, 11],
]  # of seed 3


def _layout(longest_row=96, num_heads=3, **fields):
    return BlockLayout(BigBirdSparsityConfig(block=8, **fields), num_heads, longest_row)


def test_windows_and_global_blocks_by_hand():
    present = _layout(longest_row=48, num_random_blocks=0).present(6)
    expected = """
        111111
        111000
        111100
        101110
        100111
        100011
    """
    assert present.shape == (1, 6, 6)
    assert ["".join(map(str, row)) for row in present[0].astype(int)] == expected.split()


def test_each_block_of_queries_draws_its_own():
    layout = _layout(num_random_blocks=3)
    drawn = layout.random_blocks(12)
    assert drawn.shape == (1, 12, 3)
    assert drawn.min() >= 0
    assert drawn.max() < 12
    assert all(len(set(row)) == 3 for row in drawn[0])
    assert len({tuple(row) for row in drawn[0]}) > 6
    by_hand = layout.without_random(12).copy()
    for row in range(12):
        by_hand[row, drawn[0, row]] = True
    assert np.array_equal(layout.present(12)[0], by_hand)


def test_random_blocks_are_the_same_everywhere():
    """Written down: a run that resumes with another NumPy has the layout that it began with."""
    assert _layout(num_random_blocks=2, seed=3).random_blocks(12)[0].tolist() == RANDOM_BLOCKS
    assert _layout(num_random_blocks=2, seed=4).random_blocks(12)[0].tolist() != RANDOM_BLOCKS


def test_random_blocks_are_uniform():
    drawn = BlockLayout(BigBirdSparsityConfig(num_random_blocks=3), 1, 16 * 4000).random_blocks(4000)
    counts = np.histogram(drawn, 8, (0, 4000))[0]
    assert np.abs(counts - 1500).max() < 5 * 1500**0.5


def test_heads_share_the_random_blocks_or_not():
    assert _layout().random_blocks(12).shape[0] == 1
    of_heads = _layout(different_layout_per_head=True).random_blocks(12)
    assert of_heads.shape == (3, 12, 1)
    assert len({head.tobytes() for head in of_heads}) == 3


def test_a_shorter_row_has_the_blocks_that_lie_in_it():
    layout = _layout(num_random_blocks=4)
    assert np.array_equal(layout.present(5), layout.present(12)[:, :5, :5])
    assert layout.num_blocks(40) == 5
    assert layout.num_blocks(41) == 6


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"block": 0}, ["block is 0", "at least 1"]),
        ({"num_heads": 0}, ["num_heads is 0", "at least 1"]),
        ({"num_random_blocks": -1}, ["num_random_blocks is -1", "at least 0"]),
        ({"num_sliding_window_blocks": 2}, ["num_sliding_window_blocks is 2", "odd", "3"]),
        ({"different_layout_per_head": 1}, ["different_layout_per_head is 1", "True or False"]),
        ({"attention": "unidirectional"}, ["'unidirectional'", "'bidirectional'"]),
        ({"attention": "causal"}, ["'causal'", "bidirectional"]),
    ],
)
def test_bad_layouts_are_refused(fields, words):
    with pytest.raises(ValueError, match="BigBirdSparsityConfig") as error:
        BigBirdSparsityConfig(**fields)
    assert not [word for word in words if word not in str(error.value)], error.value


@pytest.mark.parametrize(
    ("of_network", "of_layout", "words"),
    [
        ({}, {"num_heads": 8}, ["num_heads is 8", "EncoderConfig.num_heads is 12", "leave it out"]),
        ({}, {"num_random_blocks": 33}, ["num_random_blocks is 33", "max_positions, 512, has 32 blocks"]),
        ({"max_positions": 40}, {"num_global_blocks": 4}, ["num_global_blocks is 4", "3 blocks", "at most 3"]),
        ({"global_attention_every": 3}, {}, ["global_attention_every is 3", "global_attention_every = 1"]),
    ],
)
def test_a_layout_that_a_network_cannot_have_is_refused(of_network, of_layout, words):
    with pytest.raises(ValueError) as error:
        EncoderConfig(vocab_size=8, sparse_attention=BigBirdSparsityConfig(**of_layout), **of_network)
    assert not [word for word in words if word not in str(error.value)], error.value


def test_a_layout_is_a_configuration_of_its_own():
    with pytest.raises(ValueError, match=r"sparse_attention is \{'block': 16\}; give a block_layout"):
        EncoderConfig(vocab_size=8, sparse_attention={"block": 16})
    fields = dataclasses.fields(BigBirdSparsityConfig)
    assert [field.name for field in fields[:7]] == [  # DeepSpeed's, so that its users' files are read as they are
        *("num_heads", "block", "different_layout_per_head", "num_random_blocks"),
        *("num_sliding_window_blocks", "num_global_blocks", "attention"),
    ]
    config = EncoderConfig(vocab_size=8, position_embedding_type="none", sparse_attention=BigBirdSparsityConfig())
    assert config.longest_row == 512
