"""Requests to stop a run: SIGTERM from a cluster, or Ctrl-C from a user, in every command."""

import _weakrefset
import contextlib
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Protocol

# sysexits.h EX_TEMPFAIL: "try again later". A supervisor restarts the run.
PREEMPTED_EXIT_CODE = 75
# Seconds that a loop has to notice a signal before it is taken for blocked. Spot machines give 30 s in all.
_GRACE_SECONDS = 5.0
logger = logging.getLogger(__name__)

# The byte that ends the listening thread; no signal has this number.
_END = b"\0"


class Agreement(Protocol):
    """Stops all workers of a run after the same step, as `limba.workers.heartbeats.Heartbeat` does."""

    def request_stop(self, reason: str) -> None: ...

    def stop_due(self, step: int) -> bool: ...


class StopRequest:
    """A context in which SIGTERM and the first Ctrl-C request a stop; a second Ctrl-C interrupts at once.

    Python runs signal handlers only between two operations of the main thread, which may wait for minutes in a
    compiler or in another library. So a thread hears the signals too.

    Args:
      agreement: of the workers of a run; without it the process runs alone.
      interrupt: called once by the thread, right after a signal; it ends the waits that can be ended.
      rescue: called by the thread after `grace_seconds`, and then each second, while the context is open. If the loop
        is blocked it saves what it can and ends the process.
    """

    _SIGNALS: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)

    def __init__(
        self,
        agreement: Agreement | None = None,
        interrupt: Callable[[], None] = lambda: None,
        rescue: Callable[[], None] = lambda: None,
        grace_seconds: float = _GRACE_SECONDS,
    ) -> None:
        self._requested = self._handled = False
        self._agreement = agreement
        self._interrupt, self._rescue, self._grace = interrupt, rescue, grace_seconds
        self._previous: dict[int, object] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="limba-stop", daemon=True)

    @property
    def is_requested(self) -> bool:
        """Whether this process was asked; the workers of a run may not have agreed on the step yet."""
        return self._requested

    def is_due(self, step: int) -> bool:
        """Whether the run ends after this step; all workers get the same answer."""
        return self._requested if self._agreement is None else self._agreement.stop_due(step)

    def request(self, reason: str) -> None:
        """Requests a stop, as a signal does."""
        self._requested = True
        if self._agreement is not None:
            self._agreement.request_stop(reason)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        # Not `_requested`: the thread may have heard this very signal already.
        if self._handled and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self._handled = True
        self._ask(signum)

    def _ask(self, signum: int) -> None:
        self.request(f"asked to stop ({signal.Signals(signum).name})")

    def _listen(self) -> None:
        """Waits for the first signal of interest, whose number Python's own handler writes into the pipe."""
        while (number := os.read(self._pipe[0], 1)) not in (_END, b""):
            if number[0] in self._previous:
                break
        else:
            return
        self._ask(number[0])
        self._interrupt()
        wait = self._grace
        while not self._closed.wait(wait):
            self._rescue()
            wait = 1.0

    def __enter__(self) -> "StopRequest":
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        for signum in self._SIGNALS:
            self._previous[signum] = signal.signal(signum, self._handle)
        self._previous_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._previous_fd)
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]
        self._closed.set()
        with contextlib.suppress(BlockingIOError):  # Full of signals: the thread reads them and ends.
            os.write(self._pipe[1], _END)
        self._thread.join()
        for descriptor in self._pipe:
            os.close(descriptor)


class StopBeforeSteps(StopRequest):
    """A context in which SIGTERM ends the process by `SystemExit(75)`: before the first step there is nothing to save.

    Args:
      leave: called by the thread if the main thread is still in a library after `grace_seconds`; it ends the process.
    """

    _SIGNALS = (signal.SIGTERM,)

    def __init__(self, leave: Callable[[], None], grace_seconds: float = _GRACE_SECONDS) -> None:
        super().__init__(rescue=leave, grace_seconds=grace_seconds)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self._handled:
            self._handled = True
            logger.warning("Stopped on request outside the steps; the same command resumes the run.")
            raise SystemExit(PREEMPTED_EXIT_CODE)


# Python drops exceptions in callbacks of its garbage collector and of weak references, and prints them.
_CALLBACKS = {"_xla_gc_callback", "__del__"}
_FILES_OF_CALLBACKS = {weakref.__file__, _weakrefset.__file__}
_SECONDS = 0.1


def catch_interrupts() -> None:
    """Raises KeyboardInterrupt at Ctrl-C as Python does, but where Python would drop it a moment later."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise_interrupt)


def _raise_interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_name in _CALLBACKS or frame.f_code.co_filename in _FILES_OF_CALLBACKS:
            main = threading.main_thread().ident
            assert main is not None
            threading.Timer(_SECONDS, signal.pthread_kill, (main, number)).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt
