"""The position in a remote file, whose size is known beforehand."""

import io


class SeekableReader(io.RawIOBase):
    """Seeks without asking anybody; `readinto` of its heirs reads from `_position` on.

    Args:
      size: the file's bytes.
    """

    def __init__(self, size: int):
        super().__init__()
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def _in_file(self, wanted: int) -> int:
        """How many of so many bytes the file has from the position on."""
        return min(wanted, max(0, self._size - self._position))
