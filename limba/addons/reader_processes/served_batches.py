"""A reader's process: it makes the batches of plans, in slots of shared memory as they become free."""

import contextlib
import dataclasses
import pickle
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, shared_memory
from typing import Any

import numpy as np

from limba.files import python_path
from limba.gin_config import importing
from limba.tasks.pipeline.positions import ReadPlan
from limba.tasks.pipeline.readers import ReadingError
from limba.tasks.pipeline.streams import Stream
from limba.tasks.registry.rows import Columns

# Arrays in a slot begin at multiples of this.
_ALIGNMENT = 64
# Slots of a reader, at least; as many as it makes batches ahead.
_FEWEST_SLOTS = 2


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the arrays of a batch lie in a slot: name, type, shape and first byte of each."""

    arrays: tuple[tuple[str, str, tuple[int, ...], int], ...]
    size: int

    @classmethod
    def of(cls, batch: Columns) -> "Layout":
        arrays, size = [], 0
        for name, array in batch.items():
            arrays.append((name, array.dtype.str, array.shape, size))
            size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return cls(tuple(arrays), size)

    def views(self, memory: shared_memory.SharedMemory, slot: int) -> dict[str, np.ndarray]:
        first = slot * self.size
        return {
            name: np.ndarray(shape, np.dtype(dtype), memory.buf, first + start)
            for name, dtype, shape, start in self.arrays
        }


def serve(messages: connection.Connection, num_rows: int, modules: Sequence[str] = ()) -> None:
    """The main function of a reader's process: it ends when the consumer's end of the pipe is closed.

    Args:
      modules: of the working directory, that the main process has imported.
    """
    # Ctrl-C and requests to stop are the main process's: it saves first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    importing.prepare()  # Reading a stream imports the modules of its functions.
    python_path.continue_with(modules)
    send_lock = threading.Lock()

    def send(message: Any) -> None:
        with send_lock, contextlib.suppress(OSError):
            messages.send(message)

    source = _Source(num_rows)
    free: dict[int, queue.Queue[int | None]] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            kind, number, value = messages.recv()
            if kind == "stream":
                source.change(value)
            elif kind == "open":
                free[number] = queue.Queue()
                arguments = (source, value, number, free[number], send)
                threading.Thread(target=_make, args=arguments, daemon=True).start()
            else:
                free[number].put(value)  # None ends the thread
    source.unlink()


class _Source:
    """The stream of a process, and the memory of its readers."""

    def __init__(self, num_rows: int):
        self._content = b""
        self._num_rows = num_rows
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._memories: list[shared_memory.SharedMemory] = []

    def change(self, content: bytes) -> None:
        """What plans are opened with from now on: a stream, pickled."""
        with self._lock:
            self._content, self._stream = content, None

    def open(self, plan: ReadPlan) -> tuple[Iterator[Columns], int]:
        """The batches of a plan, and how many slots they get. One thread at a time opens files."""
        with self._lock:
            stream = self._stream = self._stream or pickle.loads(self._content)
            ahead = stream.num_batches_ahead(self._num_rows, plan.num_readers)
            return stream.batches(self._num_rows, plan), max(_FEWEST_SLOTS, ahead)

    def allocate(self, size: int) -> shared_memory.SharedMemory:
        memory = shared_memory.SharedMemory(create=True, size=size)
        self._memories.append(memory)
        return memory

    def unlink(self) -> None:
        """Gives memory back that the consumer has not; it is gone when both have left it."""
        for memory in self._memories:
            with contextlib.suppress(FileNotFoundError):
                memory.unlink()


def _make(
    source: _Source, plan: ReadPlan, number: int, free: "queue.Queue[int | None]", send: Callable[[Any], None]
) -> None:
    """Makes the batches of a plan, in slots as they become free."""
    try:
        batches, num_slots = source.open(plan)
        slots: list[dict[str, np.ndarray]] = []
        for batch in batches:
            if not slots:
                layout = Layout.of(batch)
                memory = source.allocate(layout.size * num_slots)
                slots = [layout.views(memory, slot) for slot in range(num_slots)]
                send((number, ("memory", (memory.name, layout, num_slots))))
                for slot in range(num_slots):
                    free.put(slot)
            if (empty := free.get()) is None:
                return
            for name, view in slots[empty].items():
                view[...] = batch[name]
            send((number, ("batch", empty)))
        send((number, ("failed", StopIteration())))
    except BaseException as error:
        send((number, ("failed", _sendable(error))))


def _sendable(error: BaseException) -> BaseException:
    """The error, or its words where it cannot be pickled, or would end the training as if it were well: sys.exit."""
    if not isinstance(error, Exception):
        return ReadingError(repr(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ReadingError(f"{type(error).__name__}: {error}")
    return error
