"""Freed memory stays with the process, for the next step of a training on CPUs.

XLA allocates the temporary memory of a program at each call, and glibc gives large blocks back to the kernel as soon as
they are free. The kernel fills each page with zeros again: a third of the cpu-seconds of a small network's
step (docs/performance.md).
"""

import ctypes
import platform
from collections.abc import Mapping

from limba.devices import accelerators

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8


def keep(environ: Mapping[str, str]) -> bool:
    """Lets glibc keep what is freed, in one heap; returns whether it does. Call it before threads start.

    Left as they are: hosts of accelerators, whose steps compute elsewhere; other C libraries; and a process whose
    environment sets malloc up itself (MALLOC_…, GLIBC_TUNABLES, LD_PRELOAD).
    """
    is_set_up = any(name.startswith("MALLOC_") for name in environ) or {"GLIBC_TUNABLES", "LD_PRELOAD"} & environ.keys()
    if is_set_up or platform.libc_ver()[0] != "glibc" or not accelerators.computes_on_cpu(environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    # Blocks of a thread's own heap are given back with the heap, whatever the threshold; -1 is the largest one.
    options = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: -1}
    return all(mallopt(option, value) == 1 for option, value in options.items())
