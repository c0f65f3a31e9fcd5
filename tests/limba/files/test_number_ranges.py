"""One check of numbers: what is one, where it lies, and the message."""

import math

import numpy as np
import pytest

from limba.files import number_ranges
from limba.files.number_ranges import ABOVE_0, AT_LEAST_0, AT_LEAST_1, SHARE, Range


@pytest.mark.parametrize(
    ("allowed", "right", "wrong"),
    [
        (AT_LEAST_1, (1, np.int32(7), 10**400), (0, True, 1.0, "1", None, [1])),
        (AT_LEAST_0._replace(below=8, or_none=True), (0, 7, None), (-1, 8, False)),
        (ABOVE_0, (1, 0.5, np.float32(0.1)), (0, -1, math.nan, math.inf, "1")),
        (SHARE, (0, 0.0, 0.999), (1, 1.0, -0.1, None)),
        (Range(), (0, 10**400), (math.inf, -1e-9, 1j)),
    ],
)
def test_what_is_such_a_number(allowed, right, wrong):
    assert all(map(allowed.has, right)) and not any(map(allowed.has, wrong))


@pytest.mark.parametrize(
    ("value", "allowed", "words"),
    [
        (0, AT_LEAST_1, "x is 0; it is a whole number of at least 1."),
        (np.int64(-2), AT_LEAST_0, "x is -2; it is a whole number of at least 0."),
        ("y" * 9000, SHARE, f"x is '{'y' * 60}…'; it is a number of at least 0 and below 1."),
        (
            -1,
            AT_LEAST_0._replace(below=2**31, or_none=True),
            "x is -1; it is a whole number of at least 0 and below 2**31, or None.",
        ),
        (0.0, Range(is_above=True, below=1000), "x is 0.0; it is a number above 0 and below 1,000."),
    ],
)
def test_messages(value, allowed, words):
    with pytest.raises(ValueError) as error:
        number_ranges.check("x", value, allowed)
    assert str(error.value) == words


def test_a_hint_continues_the_sentence():
    with pytest.raises(ValueError, match=r"^epochs is 0; it is a number above 0, such as 3\.$"):
        number_ranges.check("epochs", 0, ABOVE_0, ", such as 3")


def test_numbers_of_digits():
    texts = ("07", "٣", "", "²", "-1", "9" * 5000)
    assert [*map(number_ranges.of_digits, texts)] == [7, 3, None, None, None, None]
