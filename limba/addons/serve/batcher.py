"""Requests that come at about the same time, worked on together.

One thread runs the model. It takes the oldest item, waits a moment for more of its kind, and runs them as one batch;
items that come in the meantime wait for the next. Where many items come at once, the second batch of them counts as if
it had come when the first is done, and so on: others need not wait for all of them.
"""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

Run = Callable[[Sequence[Any]], Sequence[Any]]


class QueueFullError(Exception):
    """There is no place for more items."""


@dataclasses.dataclass(frozen=True)
class _Waiting:
    kind: Hashable
    item: Any
    result: Future
    arrived: float
    turn: int


class Batcher:
    """A queue, and the thread that empties it.

    Args:
      run: `(items of one kind) -> their results`; called in one thread, always the same.
      max_batch: items of one call.
      max_wait_s: seconds that the oldest item waits for others.
      max_queue: items that wait at most.
    """

    def __init__(self, run: Run, max_batch: int, max_wait_s: float, max_queue: int):
        self._run, self._max_batch, self._max_wait_s, self._max_queue = run, max_batch, max_wait_s, max_queue
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._batch_s = 0.0  # that one of the last batches took
        self._changed = threading.Condition()
        self._closed = False
        self._model = ThreadPoolExecutor(1, "model")
        self._thread = threading.Thread(target=self._work, name="batches", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, items: Sequence[tuple[Hashable, Any]]) -> list[Future]:
        """Adds items, each with its kind, all or none. Results are in the futures; cancelling one takes its item back.

        Raises:
          QueueFullError: if they have no place.
        """
        arrived = time.monotonic()
        with self._changed:
            self._forget_cancelled()
            if self._closed or len(self._waiting) + len(items) > self._max_queue:
                raise QueueFullError
            new = [
                _Waiting(kind, item, Future(), arrived, number // self._max_batch)
                for number, (kind, item) in enumerate(items)
            ]
            self._waiting.extend(new)
            self._changed.notify()
        return [waiting.result for waiting in new]

    def close(self) -> None:
        """Runs what waits, and ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._model.shutdown()

    def _work(self) -> None:
        while batch := self._take():
            running = [waiting for waiting in batch if waiting.result.set_running_or_notify_cancel()]
            if not running:
                continue
            begun = time.monotonic()
            called = self._model.submit(self._run, [waiting.item for waiting in running])
            error = called.exception()
            self._batch_s = max(time.monotonic() - begun, self._batch_s / 2)
            if error is not None:
                for waiting in running:
                    waiting.result.set_exception(error)
            else:
                for waiting, result in zip(running, called.result(), strict=True):
                    waiting.result.set_result(result)

    def _take(self) -> list[_Waiting]:
        """The next batch; empty when there will be none."""
        with self._changed:
            while True:
                self._forget_cancelled()
                if self._waiting:
                    ordered = sorted(self._waiting, key=lambda x: x.arrived + x.turn * self._batch_s)
                    oldest = ordered[0]
                    batch = [x for x in ordered if x.kind == oldest.kind][: self._max_batch]
                    left = oldest.arrived + self._max_wait_s - time.monotonic()
                    if len(batch) == self._max_batch or left <= 0 or self._closed:
                        taken = set(map(id, batch))
                        self._waiting = collections.deque(x for x in self._waiting if id(x) not in taken)
                        return batch
                    self._changed.wait(left)
                elif self._closed:
                    return []
                else:
                    self._changed.wait()

    def _forget_cancelled(self) -> None:
        if any(waiting.result.cancelled() for waiting in self._waiting):
            self._waiting = collections.deque(x for x in self._waiting if not x.result.cancelled())
