"""Freed memory goes back to the system at once."""

import ctypes
import platform

# Of glibc's mallopt (malloc.h).
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES = 4 * 2**20


def return_freed_memory() -> None:
    """From now on a freed part of a tensor no longer counts as this process's memory.

    glibc keeps what is freed for the next request, in a heap for each thread, and learns to do so for ever larger ones.
    A conversion reads parts of many sizes in many threads: the peak of one of T5 XL's width was 1.5 GB, and is 1.0.
    Other C libraries do not have the habit.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, 2)
