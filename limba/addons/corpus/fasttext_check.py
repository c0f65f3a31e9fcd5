"""A look at a fastText model of a stranger, in a process of its own: the library believes every number of the file.

A few changed bytes end the process that reads it, or let it ask for memory, or for words behind the end, without end.
"""

import contextlib
import multiprocessing
import resource
from pathlib import Path
from typing import Any

from limba.files import untrusted_files

# For a file of no size. A gigabyte takes seconds.
_SECONDS, _BYTES_OF_A_SECOND = 30, 2**24
# Beside the tensors, which the file holds once.
_MEMORY = 2**30


def labels(file: str) -> list[str]:
    """The names of languages that a model knows.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is no model.
    """
    size = untrusted_files.check_is_file(Path(file))
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_read, args=(file, size, theirs))
    process.start()
    theirs.close()
    with contextlib.closing(ours):
        try:
            found = ours.recv()
        except EOFError:
            process.join()
            found = f"the process that read it ended with code {process.exitcode}"
    process.join()
    if isinstance(found, str):
        raise ValueError(f"{file} is no model of fastText: {untrusted_files.cut(found)}.")
    return found


def _read(file: str, size: int, answer: Any) -> None:
    from limba.addons.corpus.blocks import OwnModel

    seconds = _SECONDS + size // _BYTES_OF_A_SECOND
    _limit(resource.RLIMIT_CPU, seconds)
    _limit(resource.RLIMIT_CORE, 0)
    with contextlib.suppress(FileNotFoundError):  # Not on Linux.
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + 2 * size + _MEMORY)
    try:
        model = OwnModel(file, "").model
        model.predict("a text", k=-1)
        answer.send([name.removeprefix("__label__") for name in model.get_labels()])
    except Exception as error:
        answer.send(str(error) or type(error).__name__)


def _limit(kind: int, most: int) -> None:
    """Within what `ulimit` or a queue allows: a process cannot allow itself more."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
