"""Readers in processes of their own, which make batches ahead and hand them over in shared memory.

Reader `r` of a host lives in process `r % num_workers`, in a thread. A batch lies in one of the reader's slots until
the consumer has copied it; the messages that go to and fro say only which slot is full and which is free.
"""

import collections
import contextlib
import dataclasses
import multiprocessing
import pickle
import signal
from multiprocessing import connection, shared_memory
from typing import Any

import numpy as np

from limba.addons.reader_processes import served_batches
from limba.data.contract import ReadingStoppedError
from limba.files import python_path
from limba.tasks.pipeline.open_iterators import close_at_exit
from limba.tasks.pipeline.positions import ReadPlan
from limba.tasks.pipeline.readers import Batches, ReadingError
from limba.tasks.pipeline.streams import Stream
from limba.tasks.registry import Mixture, Task
from limba.tasks.registry.rows import Columns
from limba.tasks.registry.tasks import is_mixture

# Seconds after which a wait looks whether it should end.
_TICK = 0.1


class ReaderProcesses:
    """Processes for the readers of one host.

    Args:
      stream: what is read; all its parts can be pickled.
      num_rows: of a reader's batch.
      num_workers: how many processes.

    Raises:
      ValueError: if something of the stream cannot be pickled; the message names it.
    """

    def __init__(self, stream: Stream, num_rows: int, num_workers: int):
        _pickled(stream)  # what cannot be is refused before anything is read
        self._stream = stream
        self._num_rows = num_rows
        self._workers: list[_Worker | None] = [None] * num_workers

    def open(self, plan: ReadPlan) -> Batches:
        """The batches of a plan, made by the reader's process."""
        number = plan.reader % len(self._workers)
        worker = self._workers[number]
        if worker is None:
            # Each by itself: one that nothing reads any more may outlive these, and its process would be waited for.
            worker = self._workers[number] = close_at_exit(_Worker(self._num_rows))
        # Now, since the stream may have gone back to the commit of a saved position.
        return worker.open(plan, _pickled(self._stream))

    def close(self) -> None:
        """Ends the processes."""
        for worker in self._workers:
            if worker is not None:
                worker.close()

    def join(self, seconds: float) -> None:
        """Waits until they have ended, at most so long each; then they are killed."""
        for worker in self._workers:
            if worker is not None:
                worker.join(seconds)


def _pickled(stream: Stream) -> bytes:
    """The stream without what reading does not need: metrics, postprocessors, functions of rates."""
    tasks = {
        task.name: Task(
            task.name,
            task.source,
            task.output_features,
            task.preprocessors,
            shuffle_buffer_size=task.shuffle_buffer_size,
        )
        for task in stream.tasks
    }
    provider: Any = next(iter(tasks.values()))
    if is_mixture(stream.provider):
        rates = [(tasks[task.name], stream.provider.get_rate(task)) for task in stream.tasks]
        provider = Mixture(stream.provider.name, rates)
    config = dataclasses.replace(stream.config, mixture_or_task_name=stream.config.name, module=None)
    content = dataclasses.replace(stream, config=config, provider=provider, tasks=list(tasks.values()))
    try:
        return pickle.dumps(content)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ValueError(
            f"DatasetConfig.num_workers is {stream.config.num_workers}, and {stream.config.name!r} cannot be sent to a "
            f"process ({error}). Define its functions and classes at the top of a module; or set num_workers to 0."
        ) from error


class _Worker:
    """A process as its consumer sees it."""

    def __init__(self, num_rows: int):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=served_batches.serve, args=(theirs, num_rows, python_path.asked()), daemon=True
        )
        self._process.start()
        theirs.close()
        self._content: bytes | None = None
        self._opened: dict[int, _ProcessBatches] = {}
        self._stopped = False

    def open(self, plan: ReadPlan, content: bytes) -> "_ProcessBatches":
        # A number of its own: batches of a reader's earlier plan may still come.
        number = len(self._opened)
        if content != self._content:
            self._content = content
            self.send(("stream", number, content))
        opened = self._opened[number] = _ProcessBatches(self, number, plan.reader)
        self.send(("open", number, plan))
        return opened

    def send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError:
            return  # The process has ended; the next batch says so.

    def receive(self, reader: int) -> None:
        """Takes one message and gives it to the batches that it is for.

        Raises:
          RuntimeError: if the process has ended.
          ReadingStoppedError: if none comes after `stop_waiting`.
        """
        while not (ready := connection.wait([self._connection, self._process.sentinel], timeout=_TICK)):
            if self._stopped:
                raise ReadingStoppedError
        if self._connection in ready:
            with contextlib.suppress(EOFError, OSError):
                number, message = self._connection.recv()
                self._opened[number].received.append(message)
                return
        self._process.join()
        code = self._process.exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"
        hint = " Was there too little memory?" if code == -signal.SIGKILL else ""
        raise ReadingError(
            f"The process {self._process.pid} of reader {reader} {how}.{hint} Start the run again; it resumes from its "
            "last checkpoint"
        )

    def stop_waiting(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._connection.close()
        for opened in self._opened.values():
            opened.release()

    def join(self, seconds: float) -> None:
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()


class _ProcessBatches:
    """The batches of a plan. Implements `readers.Batches`."""

    def __init__(self, worker: _Worker, number: int, reader: int):
        self._worker = worker
        self._number = number
        self._reader = reader
        self._memory: shared_memory.SharedMemory | None = None
        self._slots: list[dict[str, np.ndarray]] = []
        self._failure: BaseException | None = None
        self.received: collections.deque[Any] = collections.deque()

    def __next__(self) -> Columns:
        while self._failure is None:
            while not self.received:
                self._worker.receive(self._reader)
            kind, content = self.received.popleft()
            if kind == "memory":
                name, layout, num_slots = content
                self._memory = shared_memory.SharedMemory(name)
                self._slots = [layout.views(self._memory, slot) for slot in range(num_slots)]
            elif kind == "batch":
                batch = {name: view.copy() for name, view in self._slots[content].items()}
                self._worker.send(("free", self._number, content))
                return batch
            else:
                self._failure = content
        raise self._failure

    def stop_waiting(self) -> None:
        """Makes a `next` that waits raise `ReadingStoppedError`; any thread may call it."""
        self._worker.stop_waiting()

    def close(self) -> None:
        """Tells the process to make no more of them."""
        self._worker.send(("close", self._number, None))
        self.release()

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Gives the shared memory back."""
        self._slots = []
        if self._memory is not None:
            self._memory.close()
            with contextlib.suppress(FileNotFoundError):
                self._memory.unlink()
            self._memory = None
