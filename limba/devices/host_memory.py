"""The memory of the machine, which a training on CPUs takes its state from.

An accelerator refuses an array that does not fit. A machine without one hands out more memory than it has, gets slow,
and ends the process or another one.
"""

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax

_GB = 10**9
# Where Linux has the limit of a container: of today's control groups, and of the older ones.
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def total() -> int:
    """Bytes that all processes of this machine, or of its container, have together."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _LIMITS:
        try:
            found.append(int(file.read_text()))
        except (OSError, ValueError):  # No such file here, or "max".
            continue
    return min(found)


def excess(arrays: Iterable[Any], what: str) -> str:
    """Why arrays, or their shapes, cannot be on all hosts together where the devices are CPUs; "" if they can."""
    if jax.default_backend() != "cpu":
        return ""
    num_bytes = sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays)
    there = total() * jax.process_count()
    if num_bytes <= there:
        return ""
    return (
        f"{what} takes {num_bytes / _GB:,.0f} GB, and this machine has {there / _GB:,.0f} GB of memory. Look at the "
        "sizes of the network: `limba plan` says which machine has room for it."
    )
