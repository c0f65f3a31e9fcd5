"""Closes open readers when the process ends.

Their threads run ahead and call Python functions. One that asks for Python while it shuts down waits for ever, and the
process with it.
"""

import atexit
import multiprocessing.util  # noqa: F401, whose own function at exit must run after ours
import weakref
from typing import Protocol, TypeVar

# Of a thread that waits for the network.
_MOST_SECONDS = 2.0


class Closeable(Protocol):
    def close(self) -> None: ...

    def join(self, seconds: float) -> None: ...


_T = TypeVar("_T", bound=Closeable)
_open: weakref.WeakSet[Closeable] = weakref.WeakSet()


def close_at_exit(reader: _T) -> _T:
    """Closes `reader` when the process ends, if it is still there then. Returns it."""
    _open.add(reader)
    return reader


@atexit.register
def close_all() -> None:
    """Closes what is open, and waits for its threads."""
    readers = list(_open)
    _open.clear()
    for reader in readers:
        reader.close()
    for reader in readers:
        reader.join(_MOST_SECONDS)
