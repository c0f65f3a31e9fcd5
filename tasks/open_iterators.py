"""What still reads when the process ends is closed first.

The threads of a `tf.data` pipeline run ahead and call Python functions. One that asks for Python while it shuts down
waits for ever, and the process with it.
"""

import atexit
import weakref
from typing import Protocol, TypeVar


class Closeable(Protocol):
    def close(self) -> None: ...


_T = TypeVar("_T", bound=Closeable)
_open: weakref.WeakSet[Closeable] = weakref.WeakSet()


def close_at_exit(reading: _T) -> _T:
    """Closes `reading` when the process ends, if it is still there then. Returns it."""
    _open.add(reading)
    return reading


@atexit.register
def _close_all() -> None:
    for reading in list(_open):
        reading.close()
