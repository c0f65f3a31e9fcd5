"""What a number may be: whole or not, and between which limits. Arguments, gin's bindings, flags and files ask here."""

import math
import numbers
import re
from typing import Any, NamedTuple

from limba.files.untrusted_files import shown


class Range(NamedTuple):
    """What a number may be: at least `least`, or above it; below `below`; a whole one; or None."""

    least: float = 0
    below: float = math.inf
    is_above: bool = False
    is_whole: bool = False
    or_none: bool = False

    def has(self, value: Any) -> bool:
        """Whether a value is such a number; True and False are none."""
        if value is None:
            return self.or_none
        if not is_number(value) or (self.is_whole and not isinstance(value, numbers.Integral)):
            return False
        is_enough = value > self.least if self.is_above else value >= self.least  # type: ignore[operator]
        return is_enough and value < self.below  # type: ignore[operator]

    def __str__(self) -> str:
        kind = "a whole number" if self.is_whole else "a number"
        lower = f"{'above' if self.is_above else 'of at least'} {self.least:,g}"
        upper = "" if self.below == math.inf else f" and below {_limit(self.below)}"
        return f"{kind} {lower}{upper}{', or None' if self.or_none else ''}"


# Sizes, such as a batch's; whole numbers that may be 0, such as seeds.
AT_LEAST_1, AT_LEAST_0 = Range(1, is_whole=True), Range(is_whole=True)
# What scales; parts of a whole, such as a rate of dropout.
ABOVE_0, SHARE = Range(is_above=True), Range(below=1)


# Python also takes a superscript for a digit, of which `int` makes no number, and stops at 4300 digits.
_DIGITS = re.compile(r"\d{1,18}")


def of_digits(text: str) -> int | None:
    """The number that a text of up to 18 digits, of any script, is; None of other texts."""
    return int(text) if _DIGITS.fullmatch(text) else None


def is_number(value: Any) -> bool:
    """Whether it is a number, whole or not; True and False are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check(name: str, value: Any, allowed: Range, hint: str = "") -> None:
    """Raises ValueError for a value out of its range.

    Args:
      name: as the user knows it: "Trainer.num_microbatches", "--step", or a file and its key.
      hint: what continues the sentence "NAME is VALUE; it is a whole number of at least 1".
    """
    if not allowed.has(value):
        number = int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value
        raise ValueError(f"{name} is {shown(number)}; it is {allowed}{hint}.")


def _limit(value: float) -> str:
    """2**31 and the like as powers."""
    exponent = int(value).bit_length() - 1
    return f"2**{exponent}" if exponent > 15 and value == 2**exponent else f"{value:,g}"
