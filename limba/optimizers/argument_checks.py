"""Checks of the numbers that gin files give to optimizers and losses, before anything is compiled with them."""

from collections.abc import Mapping
from typing import Any

from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_0, SHARE, Range

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
# Of constructors of optax's, by their names; a schedule may stand for a number.
OPTAX = {
    **dict.fromkeys(("b1", "b2", "beta", "adam_b1", "adam_b2"), SHARE),
    **dict.fromkeys(("eps", "weight_decay", "adam_weight_decay", "min_scale", "vocab_rate"), Range()),
    "vocab_warmup_steps": AT_LEAST_0,
}
LOSSES = {"label_smoothing (LABEL_SMOOTHING)": SHARE, "z_loss (Z_LOSS)": Range()}


def check_numbers(owner: str, ranges: Mapping[str, Range], values: Mapping[str, Any]) -> None:
    """Raises ValueError for a value out of its range. `owner` has the name that gin files have, such as "Adafactor"."""
    for name, allowed in ranges.items():
        number_ranges.check(f"{owner}.{name}", values[name], allowed)
