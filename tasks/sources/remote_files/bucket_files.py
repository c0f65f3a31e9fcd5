"""Files in buckets (`gs://…`, `s3://…` and all else that fsspec has), as Python file objects.

fsspec opens them with a package for each kind of bucket. A failed read is repeated after a wait, as behind HTTP.
"""

import dataclasses
import glob
import io
from typing import Any

import fsspec

from limba.files import awaited, redaction
from limba.tasks.sources.remote_files import http_retries, seekable

# Reading again does not help.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError)


@dataclasses.dataclass(frozen=True)
class BucketFile:
    """A file in a bucket.

    Attributes:
      url: where it is.
      size: its bytes.
    """

    url: str
    size: int

    def open(self) -> io.BufferedReader:
        """For reading from front to back."""
        return io.BufferedReader(_BucketReader(self), 1 << 20)

    def open_parts(self) -> io.RawIOBase:
        """For reading here and there."""
        return _BucketReader(self)


def find(pattern: str) -> list[BucketFile]:
    """The files of a URL or of a pattern, sorted.

    Raises:
      ValueError: if nothing here can read such a URL, or the bucket does not answer.
      FileNotFoundError: if there are no such files.
    """
    protocol = pattern.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(pattern)
    except (ImportError, ValueError) as error:
        mounts = ", or mount the bucket and give --buckets=DIR" if protocol == "gs" else ""
        raise ValueError(
            f"data_files has {redaction.redact(pattern)!r}, and nothing here reads {protocol}:// ({error}). Install "
            f"the package{mounts}; or copy the files to this machine and name them there. https://… and "
            "hf://datasets/ORG/NAME/FILE need nothing."
        ) from None
    try:
        found = system.glob(path, detail=True) if glob.has_magic(path) else {path: system.info(path)}
    except FileNotFoundError:
        found = {}
    except Exception as error:  # Each kind of bucket has a library with errors of its own.
        raise ValueError(f"{redaction.redact(pattern)} cannot be read ({type(error).__name__}: {error}).") from error
    files = [BucketFile(f"{protocol}://{name.lstrip('/')}", facts["size"]) for name, facts in sorted(found.items())
             if facts["type"] == "file"]  # fmt: skip
    if not files:
        raise FileNotFoundError(f"There is no file {redaction.redact(pattern)!r}.")
    return files


class _BucketReader(seekable.SeekableReader):
    def __init__(self, file: BucketFile):
        super().__init__(file.size)
        self._file = file
        self._retries = http_retries.Retries(file.url)
        self._opened: Any = None

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = self._in_file(len(view))
        while wanted:
            try:
                with awaited.named(self._file.url):
                    data = self._read(wanted)
            except _FINAL as error:
                raise http_retries.BrokenFileError(f"{self._file.url} cannot be read: {error}") from error
            except Exception as error:  # Each kind of bucket has a library with errors of its own.
                self._opened = None
                self._retries.wait_after(error)
                continue
            self._retries.succeed()
            view[: len(data)] = data
            self._position += len(data)
            return len(data)
        return 0

    def _read(self, wanted: int) -> bytes:
        """At least a byte of the file, from the position on."""
        if self._opened is None:
            system, path = fsspec.core.url_to_fs(self._file.url)
            self._opened = system.open(path, "rb")
        self._opened.seek(self._position)
        data = self._opened.read(wanted)
        if not data:
            raise http_retries.TransientError(f"the file ends at byte {self._position} of {self._file.size}")
        return data
