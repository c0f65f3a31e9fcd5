"""The end of a program whose output nobody reads any more, as of `limba --help | head -3`."""

import contextlib
import os
import select
import sys
from collections.abc import Iterator

EXIT_CODE = 141  # as a program that SIGPIPE ends


@contextlib.contextmanager
def ending_silently() -> Iterator[None]:
    """A context that flushes standard output at its end, and ends the process where a pipe there has no reader.

    argparse passes over a pipe that is closed, and Python then fails when it flushes at its own end: so an exit is
    looked at, too.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        if not has_no_reader():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest at its end.
        sys.exit(EXIT_CODE)


def has_no_reader() -> bool:
    """Whether standard output is a pipe whose reader has ended."""
    poll = select.poll()
    poll.register(sys.stdout, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
