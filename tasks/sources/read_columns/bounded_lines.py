"""Text whose lines end: some compressed kilobytes, or a file with holes, may be a line larger than any memory."""

import io
from typing import Any, BinaryIO

# Of a line. A JSON list of rows is read as a whole, and may be one line. Of csv's rows thousands are parsed together.
MOST_BYTES = 2**28
MOST_OF_LIST = 2**30
MOST_OF_ROWS = 2**30


class TooManyBytesError(ValueError):
    """Rows that are read together are too long; the file may be as its format wants it."""


def bounded(file: BinaryIO) -> BinaryIO:
    """The same text, to be read from front to back.

    Reading raises ValueError for a line of more than `MOST_BYTES`, or of `MOST_OF_LIST` in a file that begins with a
    JSON list, before anybody holds it.
    """
    return io.BufferedReader(_Bounded(file), 1 << 20)


class _Bounded(io.RawIOBase):
    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file
        self._most = 0
        self._line = 1
        self._length = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read(len(buffer))
        if not self._most and piece:
            is_list = piece.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"["
            self._most = MOST_OF_LIST if is_list else MOST_BYTES
        self._line += piece.count(b"\n")
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r"))
        self._length = self._length + len(piece) if end < 0 else len(piece) - end - 1
        if self._length > self._most:
            raise ValueError(f"line {self._line} has more than {self._most:,} bytes; end its rows with line breaks")
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()


class Portions(io.RawIOBase):
    """A file of which little is read at a time, by a parser that holds what it read until `begin` is called.

    Reading raises TooManyBytesError for more than `MOST_OF_ROWS` since then.
    """

    def __init__(self, file: BinaryIO):
        super().__init__()
        self._file = file
        self._size = 0

    def begin(self) -> None:
        self._size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read(len(buffer))
        if (size := self._size + len(piece)) > MOST_OF_ROWS:
            raise TooManyBytesError(
                f"10,000 rows, which are parsed together, have more than {MOST_OF_ROWS:,} bytes; write the file as "
                "lines of JSON, a row in each"
            )
        self._size = size
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()
