"""Checks of a network's configuration. Each raises a ValueError that names field, value and remedy.

`owner` is the name of the configuration as gin files write it, such as "T5Config".
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from limba.files import number_ranges
from limba.files.number_ranges import SHARE, Range
from limba.files.untrusted_files import cut, shown
from limba.network import layers, stacks

# Far more than any network has. A configuration from elsewhere with ten million would keep a machine busy with names.
MOST_LAYERS = 10_000
# XLA's indices are of 32 bits.
MOST = 2**31 - 1


def whole_number(owner: str, field: str, value: Any, least: int) -> None:
    macro = " (VOCAB_SIZE)" if field == "vocab_size" else ""
    number_ranges.check(f"{owner}.{field}{macro}", value, Range(least, is_whole=True))
    if int(value) > MOST:
        raise ValueError(f"{owner}.{field} is {shown(int(value))}; a size of a network is at most {MOST:,}.")


def depth(owner: str, field: str, value: int) -> None:
    if value > MOST_LAYERS:
        raise ValueError(f"{owner}.{field} is {value}; a network has at most {MOST_LAYERS:,}.")


def dtype(owner: str, value: Any, why_not_float16: str) -> None:
    try:
        is_float16 = value == "fp16" or jnp.dtype(value) == jnp.float16
    except TypeError:
        raise ValueError(f"{owner}.dtype is {cut(repr(value))}; use 'bfloat16' or 'float32'.") from None
    if is_float16:
        raise ValueError(
            f"{owner}.dtype is {value!r}: {why_not_float16} Use 'bfloat16', which has float32's range, or 'float32'."
        )


def flags(owner: str, config: Any) -> None:
    for field in dataclasses.fields(config):
        if field.type in (bool, "bool") and not isinstance(value := getattr(config, field.name), bool | np.bool_):
            raise ValueError(f"{owner}.{field.name} is {shown(value)}; it is True or False.")


def choice(owner: str, field: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{owner}.{field} is {shown(value)}; choose one of {', '.join(choices)}.")


def remat_policy(owner: str, value: Any) -> None:
    if value not in stacks.REMAT_POLICIES:
        choice(owner, "remat_policy", value, [name for name in stacks.REMAT_POLICIES if name])


def activations(owner: str, value: Any) -> None:
    if isinstance(value, str):
        raise ValueError(f"{owner}.mlp_activations is {shown(value)}; it is a tuple: ({shown(value)},).")
    if not value:
        raise ValueError(f"{owner}.mlp_activations is empty; it is a tuple of names, such as ('gelu', 'linear').")
    for name in value:
        layers.activation_function(name)


def dropout_rate(owner: str, field: str, value: Any) -> None:
    macro = " (DROPOUT_RATE)" if field == "dropout_rate" else ""
    number_ranges.check(f"{owner}.{field}{macro}", value, SHARE)
