"""Random numbers without state: a function of their arguments, the same on every host."""

from typing import Any

import numpy as np


def mix(value: Any) -> Any:
    """SplitMix64's finalizer (Steele et al., 2014): a random-looking bijection of uint64, which wraps on purpose."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
