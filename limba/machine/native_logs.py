"""Keeps C++ libraries from writing their start-up chatter over the terminal."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

# What TensorFlow's C++ code says before any logger of Python's can stop it: CPU features, CUDA that is not there.
_CHATTER = re.compile(rb"^(WARNING: All log messages before absl::InitializeLog|[IWE]\d{4} \d\d:\d\d:\d\d|[IWE]0000 )")


@contextlib.contextmanager
def filtered() -> Iterator[None]:
    """Holds back what is written to file descriptor 2 inside the context; at its end all but the chatter appears."""
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
                if not _CHATTER.match(line):
                    os.write(2, line)
