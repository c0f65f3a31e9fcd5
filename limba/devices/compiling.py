"""Compiling in a thread: XLA works without Python's lock, and cannot be interrupted."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_THREAD = "compiling"


def begin(compile_it: Callable[[], Any]) -> Future[Any]:
    """Calls a function that compiles in a thread of its own; the future has its result, or its error.

    Python waits for the thread at its end: one that would come back to an interpreter that is gone crashes the process.
    """
    compiled: Future[Any] = Future()

    def run() -> None:
        try:
            compiled.set_result(compile_it())
        except BaseException as error:  # Whatever it is, who waits for the result gets it.
            compiled.set_exception(error)

    threading.Thread(target=run, name=_THREAD).start()
    return compiled


def is_running() -> bool:
    """Whether something is compiled in a thread now; to end the process without waiting takes `os._exit`."""
    return any(thread.name == _THREAD for thread in threading.enumerate())
