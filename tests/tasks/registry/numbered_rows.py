"""Rows that know their number, for tests that cut and join them."""

import numpy as np

from tasks.registry.rows import Tokens


def part(numbers):
    """Rows with a number, a text and as many tokens as the number's last digit says."""
    return {
        "number": np.array(numbers, np.int64),
        "text": np.array([str(n).encode() for n in numbers], object),
        "tokens": Tokens.of([[n] * (n % 10) for n in numbers]),
    }


def numbers(part):
    """The numbers of rows, after checking that the other columns belong to them."""
    assert [int(text) for text in part["text"]] == part["number"].tolist()
    assert part["tokens"].lengths.tolist() == [n % 10 for n in part["number"]]
    for row, n in zip(part["tokens"].padded.tolist(), part["number"].tolist(), strict=True):
        assert row == [n] * (n % 10) + [0] * (len(row) - n % 10)
    return part["number"].tolist()
