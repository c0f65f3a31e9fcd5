"""A request to stop: SIGTERM from a cluster, or Ctrl-C from a person."""

import signal
from types import FrameType

# sysexits.h EX_TEMPFAIL: "try again later". A supervisor restarts on it.
PREEMPTED_EXIT_CODE = 75


class StopRequest:
    """A context in which SIGTERM and the first Ctrl-C only set `requested`; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.requested and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    def request(self) -> None:
        """As SIGTERM does, from within."""
        self.requested = True

    def __enter__(self) -> "StopRequest":
        for signum in (signal.SIGTERM, signal.SIGINT):
            self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]
