"""Requests to stop a run: SIGTERM from a cluster, or Ctrl-C from a user."""

import signal
from types import FrameType
from typing import Protocol

# sysexits.h EX_TEMPFAIL: "try again later". A supervisor restarts the run.
PREEMPTED_EXIT_CODE = 75


class Agreement(Protocol):
    """Stops all workers of a run after the same step, as `limba.workers.heartbeats.Heartbeat` does."""

    def request_stop(self, reason: str) -> None: ...

    def stop_due(self, step: int) -> bool: ...


class StopRequest:
    """A context in which SIGTERM and the first Ctrl-C request a stop; a second Ctrl-C interrupts at once.

    Without an `agreement` of workers the process runs alone.
    """

    def __init__(self, agreement: Agreement | None = None) -> None:
        self._requested = False
        self._agreement = agreement
        self._previous: dict[int, object] = {}

    def is_due(self, step: int) -> bool:
        """Whether the run ends after this step; all workers get the same answer."""
        return self._requested if self._agreement is None else self._agreement.stop_due(step)

    def request(self, reason: str) -> None:
        """Requests a stop, as a signal does."""
        self._requested = True
        if self._agreement is not None:
            self._agreement.request_stop(reason)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self._requested and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.request(f"asked to stop ({signal.Signals(signum).name})")

    def __enter__(self) -> "StopRequest":
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]
