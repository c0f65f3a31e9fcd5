"""Repeats failed HTTP requests: how long to wait, and when to give up."""

import email.utils
import logging
import random
import re
import time
from collections.abc import Mapping

from limba.files import redaction

logger = logging.getLogger(__name__)

# Waits double from the first to the longest. 14 failures in a row are about 10 minutes: longer than a hub restarts or a
# rate limit's window of 5 minutes lasts, shorter than anyone wants to pay for idle accelerators.
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 64.0
MAX_FAILURES = 14
# Before training a person waits for the message: half a minute.
MAX_FAILURES_AT_START = 6
# `Retry-After` is obeyed up to this, of all failures in a row: who asks for more is not coming back for this run.
LONGEST_RETRY_AFTER_SECONDS = 300.0

_DIGITS = re.compile(r"\s*(\d+)\s*")


class BrokenFileError(RuntimeError):
    """A file that stayed unreadable; the message has its name and the last cause."""


class TransientError(OSError):
    """An error that may be gone with the next request."""

    def __init__(self, message: str, wait_seconds: float | None = None):
        super().__init__(message)
        self.wait_seconds = wait_seconds


class Retries:
    """Counts failures in a row, and waits between them: exponentially longer, with jitter so that hosts spread out."""

    def __init__(self, name: str, max_failures: int | None = None):
        self._name = redaction.redact(name)
        self._max_failures = max_failures
        self.succeed()

    def succeed(self) -> None:
        self._failures, self._may_ask = 0, LONGEST_RETRY_AFTER_SECONDS

    def wait_after(self, error: Exception, is_final: bool = False) -> None:
        """Raises BrokenFileError after too many failures, or one that does not change."""
        self._failures += 1
        # requests puts the URL into its messages, also the signed one of a redirect.
        said = redaction.redact(str(error))
        cause = f"{type(error).__name__.lstrip('_')}: {said}" if said else type(error).__name__
        most = self._max_failures or MAX_FAILURES
        if is_final or self._failures >= most:
            failed = "a request" if self._failures == 1 else f"{self._failures} requests in a row"
            raise BrokenFileError(f"{self._name} stays unreadable: {failed} failed, the last with {cause}") from error
        seconds = min(FIRST_WAIT_SECONDS * 2 ** (self._failures - 1), LONGEST_WAIT_SECONDS)
        # Not from the global generator: reading must not change anyone's random numbers.
        seconds *= random.SystemRandom().uniform(0.5, 1.5)
        asked = min(getattr(error, "wait_seconds", None) or 0.0, self._may_ask)
        self._may_ask, seconds = self._may_ask - asked, max(seconds, asked)
        # One failure is ordinary: servers close connections that idle while a chunk is trained on.
        level = logging.INFO if self._failures == 1 else logging.WARNING
        logger.log(level, "%s: %s; failure %d, again in %.1f s.", self._name, cause, self._failures, seconds)
        time.sleep(seconds)


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait: `Retry-After` (RFC 9110, section 10.2.3), or the hub's `RateLimit`."""
    asked = headers.get("Retry-After", "")
    if digits := _DIGITS.fullmatch(asked):
        return float(digits[1])
    if asked:
        try:
            return max(0.0, email.utils.parsedate_to_datetime(asked).timestamp() - time.time())
        except (ValueError, OverflowError):
            return None
    # Hugging Face answers a limit with `RateLimit: "resolvers";r=0;t=142`.
    reset = re.search(r";\s*r=0\s*;\s*t=(\d+)", headers.get("RateLimit", ""))
    return float(reset[1]) if reset else None
