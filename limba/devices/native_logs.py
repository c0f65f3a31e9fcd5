"""Hides the start-up messages that C++ libraries write to the terminal."""

import contextlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator

# TensorFlow's C++ code logs CPU features and missing CUDA before Python's loggers can stop it.
_START_UP = re.compile(rb"^(WARNING: All log messages before absl::InitializeLog|[IWE]\d{4} \d\d:\d\d:\d\d|[IWE]0000 )")


@contextlib.contextmanager
def filtered() -> Iterator[None]:
    """A context that holds back standard error (file descriptor 2), and writes it at its end without those messages.

    In another thread than the main one it does nothing: two at once would hold back each other's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            for line in held:
                if not _START_UP.match(line):
                    os.write(2, line)
