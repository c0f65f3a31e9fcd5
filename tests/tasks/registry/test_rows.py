"""Rows as columns: joining and cutting them."""

import numpy as np

from tasks.registry import rows
from tasks.registry.rows import Tokens
from tests.tasks.registry.numbered_rows import numbers, part


def test_tokens():
    tokens = Tokens.of([[1, 2, 3], [], [4]])
    assert tokens.padded.tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]] and tokens.padded.dtype == np.int32
    assert tokens.lengths.tolist() == [3, 0, 1] and tokens.lengths.dtype == np.int64
    cut = tokens.cut(2)
    assert cut.padded.tolist() == [[1, 2], [0, 0], [4, 0]] and cut.lengths.tolist() == [2, 0, 1]
    assert cut.pad(4).tolist() == [[1, 2, 0, 0], [0, 0, 0, 0], [4, 0, 0, 0]]
    assert tokens[np.array([2, 0])].lengths.tolist() == [1, 3] and tokens[1:].padded.tolist() == [[0, 0, 0], [4, 0, 0]]
    assert Tokens.of([]).padded.shape == (0, 0) and Tokens.of([]).pad(3).shape == (0, 3)


def test_concatenate_widens_tokens():
    whole = rows.concatenate([part([1, 13]), part([2]), part([])])
    assert numbers(whole) == [1, 13, 2] and whole["tokens"].padded.shape == (3, 3)
    assert numbers(rows.take(whole, np.array([2, 0]))) == [2, 1] and rows.num_rows(whole) == 3
    assert rows.num_rows({"tokens": whole["tokens"]}) == 3
