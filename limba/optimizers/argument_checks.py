"""Checks of the numbers that gin files give to optimizers and losses, before anything is compiled with them."""

import math
import numbers
from collections.abc import Mapping
from typing import Any, NamedTuple


class Range(NamedTuple):
    """What a number may be: at least `least`, or above it; below `below`."""

    least: float = 0.0
    below: float = math.inf
    is_above: bool = False
    or_none: bool = False

    def has(self, value: Any) -> bool:
        if value is None:
            return self.or_none
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return False
        number = float(value)
        return (self.least < number if self.is_above else self.least <= number) and number < self.below

    def __str__(self) -> str:
        lower = f"{'above' if self.is_above else 'of at least'} {self.least:g}"
        upper = "" if self.below == math.inf else f" and below {self.below:g}"
        return f"a number {lower}{upper}{', or None' if self.or_none else ''}"


ADAFACTOR = {
    "beta1": Range(below=1.0, or_none=True),
    "decay_rate": Range(),
    "step_offset": Range(),
    "clipping_threshold": Range(is_above=True, or_none=True),
    "min_dim_size_to_factor": Range(),
    "epsilon1": Range(),
    "epsilon2": Range(),
    "weight_decay_rate": Range(or_none=True),
    "weight_decay_rate_lr_exponent": Range(or_none=True),
    "global_norm_clip_threshold": Range(or_none=True),  # 0 is none, too
    "max_parameter_scale": Range(is_above=True, or_none=True),
}
_BETA, _AT_LEAST_0 = Range(below=1.0), Range()
# Of constructors of optax's, by their names; a schedule may stand for a number.
OPTAX = {
    **dict.fromkeys(("b1", "b2", "beta", "adam_b1", "adam_b2"), _BETA),
    **dict.fromkeys(("eps", "weight_decay", "adam_weight_decay", "min_scale", "vocab_rate"), _AT_LEAST_0),
}
LOSSES = {"label_smoothing (LABEL_SMOOTHING)": Range(below=1.0), "z_loss (Z_LOSS)": Range()}


def check_numbers(owner: str, ranges: Mapping[str, Range], values: Mapping[str, Any]) -> None:
    """Raises ValueError for a value out of its range. `owner` has the name that gin files have, such as "Adafactor"."""
    for name, allowed in ranges.items():
        if not allowed.has(values[name]):
            raise ValueError(f"{owner}.{name} is {values[name]!r}; it is {allowed}.")
