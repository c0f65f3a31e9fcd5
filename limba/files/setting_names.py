"""The names of settings in messages: gin's, and beside them those of a command that has keys of its own.

Such a command hands its names over while it runs (`also`). Without one, messages have gin's names alone.
"""

import contextlib
from collections.abc import Iterator, Mapping

_command = ""
_keys: Mapping[str, str] = {}


@contextlib.contextmanager
def also(command: str, keys: Mapping[str, str]) -> Iterator[None]:
    """Messages inside name the keys of a command too.

    Args:
      command: as users call it, `limba run`.
      keys: its names, by what `shown` gets: "TRAIN_STEPS", or "TASK_FEATURE_LENGTHS inputs" for a part of a setting.
    """
    global _command, _keys
    before = _command, _keys
    _command, _keys = command, keys
    try:
        yield
    finally:
        _command, _keys = before


def shown(setting: str, part: str = "") -> str:
    """A setting for a message: `TRAIN_STEPS`, or ``TRAIN_STEPS (of `limba run` max_steps)``."""
    key = _keys.get(f"{setting} {part}".rstrip())
    return setting if key is None else f"{setting} (of `{_command}` {key})"
