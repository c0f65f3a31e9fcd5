"""What a start says: each part before it begins, and how long it took. A start may take a minute."""

import contextlib
import logging
import time
from collections.abc import Iterator

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def part(what: str) -> Iterator[None]:
    """A context of a part; after an error it says nothing more."""
    begun = time.monotonic()
    logger.info("%s …", what)
    yield
    logger.info("%s: %.1f s.", what, time.monotonic() - begun)
