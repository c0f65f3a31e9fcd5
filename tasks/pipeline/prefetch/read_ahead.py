"""An iterator that runs ahead of its consumer, in a thread."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from limba.data.contract import ReadingStoppedError
from tasks.pipeline.prefetch.open_iterators import close_at_exit

_T = TypeVar("_T")
# Seconds after which a wait looks whether it should end.
_TICK = 0.1
_END = object()


class ReadAhead(Generic[_T]):
    """The items of an iterable, of which a thread makes up to `depth` in advance.

    An error of the iterable is raised where the item would have come, and again at every further call.
    """

    def __init__(self, items: Iterable[_T], depth: int):
        self._made: queue.Queue[Any] = queue.Queue(depth)
        self._closed = threading.Event()
        self._stopped = False
        self._last: Any = None
        self._thread = threading.Thread(target=self._run, args=(iter(items),), name="limba-read-ahead", daemon=True)

    def _run(self, items: Iterator[_T]) -> None:
        while not self._closed.is_set():
            try:
                item: Any = next(items, _END)
            except BaseException as error:
                item = _Failure(error)
            self._put(item)
            if item is _END or isinstance(item, _Failure):
                return

    def _put(self, item: Any) -> None:
        while not self._closed.is_set():
            try:
                self._made.put(item, timeout=_TICK)
            except queue.Full:
                continue
            return

    def __iter__(self) -> "ReadAhead[_T]":
        return self

    def start(self) -> None:
        """Begins to read, if it has not begun; the first `next` does so too."""
        if self._thread.ident is None:
            self._thread.start()
            close_at_exit(self)

    def __next__(self) -> _T:
        self.start()
        item = self._take() if self._last is None else self._last
        if item is _END:
            self._last = item
            raise StopIteration
        if isinstance(item, _Failure):
            self._last = item
            raise item.error
        return item

    def _take(self) -> Any:
        while True:
            try:
                return self._made.get(timeout=_TICK)
            except queue.Empty:
                if self._stopped:
                    raise ReadingStoppedError from None

    def stop_waiting(self) -> None:
        """Makes a `next` that waits raise `ReadingStoppedError`; any thread may call it."""
        self._stopped = True

    def close(self) -> None:
        """Ends the thread after the item that it is making."""
        self._closed.set()

    def join(self, seconds: float) -> None:
        """Waits until the thread has ended, at most so long."""
        if self._thread.ident is not None:
            self._thread.join(seconds)


class _Failure:
    def __init__(self, error: BaseException):
        self.error = error
