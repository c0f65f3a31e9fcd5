"""Ctrl-C that is not lost."""

import _weakrefset
import signal
import threading
import weakref
from types import FrameType

# Python drops exceptions in callbacks of its garbage collector and of weak references, and prints them.
_CALLBACKS = {"_xla_gc_callback", "__del__"}
_FILES_OF_CALLBACKS = {weakref.__file__, _weakrefset.__file__}
_SECONDS = 0.1


def catch() -> None:
    """Raises KeyboardInterrupt at Ctrl-C as Python does, but where Python would drop it a moment later."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    while frame is not None:
        if frame.f_code.co_name in _CALLBACKS or frame.f_code.co_filename in _FILES_OF_CALLBACKS:
            main = threading.main_thread().ident
            assert main is not None
            threading.Timer(_SECONDS, signal.pthread_kill, (main, number)).start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt
