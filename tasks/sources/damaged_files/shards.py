"""What this room knows of a file: `tasks.sources.arrow_tables.Shard` has it."""

import pathlib
from typing import Any, BinaryIO, Protocol


class Shard(Protocol):
    """A file of a corpus; `location` is a path if it is local."""

    @property
    def name(self) -> str: ...

    @property
    def location(self) -> Any: ...

    @property
    def is_remote(self) -> bool: ...

    @property
    def path(self) -> pathlib.PurePath: ...

    def open_lines(self) -> BinaryIO: ...

    def open(self) -> BinaryIO: ...
