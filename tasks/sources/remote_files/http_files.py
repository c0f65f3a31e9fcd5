"""Files behind HTTP as Python file objects, whose bytes are the file's whatever the connection does.

A failed request is repeated after a wait, from the byte where it stopped: with `Range` where the server knows it,
otherwise the bytes that were read already are skipped.

requests is imported by what reads: of local files it would be a part of the start-up.
"""

import dataclasses
import io
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from limba.files import awaited, redaction, untrusted_files
from limba.tasks.sources.remote_files import http_retries, seekable
from limba.tasks.sources.remote_files.http_retries import BrokenFileError as BrokenFileError

if TYPE_CHECKING:
    import requests

# Of a connection, and of each piece of a body. Hubs answer within seconds even when they are busy.
TIMEOUT_SECONDS = (10.0, 30.0)
# A connection is given up if it brings fewer bytes per second than this, over this many seconds of waiting.
MIN_BYTES_PER_SECOND = 1024
SLOW_AFTER_SECONDS = 60.0

_TRANSIENT_STATUS = {408, 425, 429}  # and everything from 500 on

Headers = Callable[[], Mapping[str, str]]


class RefusedError(RuntimeError):
    """A file that this user may not read."""


class HttpStatusError(Exception):
    """An error that a retry does not change.

    Attributes:
      status: the HTTP status.
      code: the hub's own word for it, such as "GatedRepo", or "".
    """

    def __init__(self, url: str, response: "requests.Response"):
        self.status = response.status_code
        self.code = response.headers.get("X-Error-Code", "")
        message = response.headers.get("X-Error-Message", "")
        where = redaction.redact(url)
        super().__init__(f"{where} answers with HTTP status {self.status} {response.reason} {message}".rstrip())


def _failures() -> tuple[type[Exception], ...]:
    import urllib3

    # requests' own errors are OSErrors, but of some addresses to which a server leads it has Python's ValueError.
    return urllib3.exceptions.HTTPError, OSError, ValueError


@dataclasses.dataclass(frozen=True)
class Document:
    """What a server answered, and the URL of the page behind it, "" if there is none."""

    content: bytes
    next_url: str


def fetch(url: str, headers: Headers) -> Document:
    """A small document, read whole.

    Raises:
      HttpStatusError: if the server refuses it.
      BrokenFileError: if it stays unreadable, or has no end.
    """
    import requests

    where, retries = redaction.redact(url), http_retries.Retries(url, http_retries.MAX_FAILURES_AT_START)
    with requests.Session() as session:
        while True:
            try:
                with awaited.named(where):
                    response = session.get(url, headers=dict(headers()), timeout=TIMEOUT_SECONDS, stream=True)
                    _check_status(url, response)
                    content, began = bytearray(), time.monotonic()
                    while piece := response.raw.read1(1 << 20, decode_content=True):
                        content += piece
                        if len(content) < MIN_BYTES_PER_SECOND * (time.monotonic() - began - SLOW_AFTER_SECONDS):
                            raise http_retries.TransientError(f"only {len(content)} bytes came")
                        if len(content) > untrusted_files.MOST_BYTES:
                            raise BrokenFileError(
                                f"{where} answers with more than {untrusted_files.MOST_BYTES:,} bytes."
                            )
                return Document(bytes(content), response.links.get("next", {}).get("url", ""))
            except _failures() as error:
                retries.wait_after(error, is_final=isinstance(error, ValueError))


def size_of(url: str, headers: Headers = dict) -> int:
    """The length of a file behind a URL, in bytes.

    Raises:
      FileNotFoundError: if the server refuses it.
      ValueError: if the server does not give the length.
      BrokenFileError: if it does not answer.
    """
    import requests

    retries = http_retries.Retries(url, http_retries.MAX_FAILURES_AT_START)
    while True:
        wanted = {**headers(), "Accept-Encoding": "identity", "Range": "bytes=0-0"}
        try:
            with (
                awaited.named(redaction.redact(url)),
                requests.get(url, headers=wanted, stream=True, timeout=TIMEOUT_SECONDS) as response,
            ):
                if response.status_code == 416:  # no first byte: empty
                    return 0
                _check_status(url, response)
                total = response.headers.get("Content-Range", "").rpartition("/")[2]
                length = total if response.status_code == 206 else response.headers.get("Content-Length", "")
        except HttpStatusError as error:
            raise FileNotFoundError(f"{error}; check the address.") from error
        except _failures() as error:
            retries.wait_after(error, is_final=isinstance(error, ValueError))
            continue
        if not re.fullmatch(r"[0-9]{1,18}", length):
            raise ValueError(
                f"The server of {redaction.redact(url)} does not say how long the file is, so an interrupted read "
                "would go unnoticed; download the file and read it from disk."
            )
        return int(length)


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL.

    Attributes:
      name: its name in messages, without credentials.
      url: where it is, with credentials if it needs any. Redirects are followed for each request, because signed
        addresses expire.
      size: its bytes.
      headers: makes the headers of a request, such as one with a token. They are not sent to other hosts.
    """

    name: str
    url: str
    size: int
    headers: Headers = dict

    def open(self) -> io.BufferedReader:
        """For reading from front to back: one request, unless it breaks."""
        return io.BufferedReader(_HttpFile(self, to_the_end=True), 1 << 20)

    def open_parts(self) -> io.RawIOBase:
        """For reading here and there: a request for each read."""
        return _HttpFile(self, to_the_end=False)


class _HttpFile(seekable.SeekableReader):
    def __init__(self, file: RemoteFile, to_the_end: bool):
        import requests

        super().__init__(file.size)
        self._file = file
        self._to_the_end = to_the_end
        self._session = requests.Session()
        self._retries = http_retries.Retries(file.name)
        # The answer that is being read, and the bytes of the file where it is and where it ends.
        self._response: requests.Response | None = None
        self._at = self._end = 0
        self._etag: str | None = None

    def close(self) -> None:
        if not self.closed:
            self._disconnect()
            self._session.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = self._in_file(len(view))
        read = 0
        while read < wanted:
            data = self._read_data(wanted - read)
            view[read : read + len(data)] = data
            read += len(data)
            if self._to_the_end:
                break
        return read

    def _read_data(self, wanted: int) -> bytes:
        """At least a byte of the file, from the position on."""
        while True:
            try:
                if self._response is None or self._at != self._position or self._at >= self._end:
                    self._request(self._file.size if self._to_the_end else self._position + wanted)
                data = self._receive(min(wanted, self._end - self._at))
            except _failures() as error:
                self._disconnect()
                self._retries.wait_after(error, is_final=isinstance(error, ValueError))
                continue
            self._position += len(data)
            return data

    def _request(self, end: int) -> None:
        """Requests bytes from the position to `end`."""
        self._disconnect()
        file, position = self._file, self._position
        headers = {**file.headers(), "Accept-Encoding": "identity", "Range": f"bytes={position}-{end - 1}"}
        with awaited.named(redaction.redact(file.url)):
            response = self._session.get(file.url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS)
        self._response, self._waited, self._received = response, 0.0, 0
        try:
            _check_status(file.url, response)
        except HttpStatusError as error:
            kind = RefusedError if error.status in (401, 403) else BrokenFileError
            raise kind(f"{file.name} cannot be read: {error}") from error
        if response.status_code == 206:
            got, total = response.headers.get("Content-Range", ""), "*"
            match = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", got)
            if match is None or int(match[1]) != position:
                raise http_retries.TransientError(f"bytes from {position} on were asked for, and {got!r} came")
            total = match[2]
            self._at, self._end = position, end
        else:
            # The server sends everything.
            if not self._to_the_end and position:
                raise BrokenFileError(
                    f"{file.name} cannot be streamed: its server does not send parts of files (HTTP "
                    "Range), and Parquet is read in parts. Download it, or convert it to JSON-lines."
                )
            total = response.headers.get("Content-Length", "*")
            self._at, self._end = 0, file.size
        self._check_same_file(total, response.headers.get("ETag"))
        while self._at < position:
            self._receive(min(position - self._at, 1 << 20))

    def _check_same_file(self, total: str, etag: str | None) -> None:
        changed = total not in ("*", str(self._file.size))
        if etag and not etag.startswith("W/"):
            changed = changed or self._etag not in (None, etag)
            self._etag = etag
        if changed:
            where = redaction.redact(self._file.url)
            raise BrokenFileError(f"{self._file.name} has changed at {where} while it was read")

    def _receive(self, wanted: int) -> bytes:
        assert self._response is not None
        began = time.monotonic()
        with awaited.named(self._file.name):
            data = self._response.raw.read1(wanted)
        self._waited += time.monotonic() - began
        self._received += len(data)
        if not data:
            raise http_retries.TransientError(f"the connection ended at byte {self._at} of {self._file.size}")
        if self._waited > SLOW_AFTER_SECONDS:
            if self._received < MIN_BYTES_PER_SECOND * self._waited:
                raise http_retries.TransientError(f"only {self._received} bytes came in {self._waited:.0f} s")
            self._waited, self._received = 0.0, 0
        # A connection that only crawls is not a success, or a shard that crawls for ever would never count as broken.
        if self._received >= MIN_BYTES_PER_SECOND * self._waited:
            self._retries.succeed()
        self._at += len(data)
        return data

    def _disconnect(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None


def _check_status(url: str, response: "requests.Response") -> None:
    status = response.status_code
    if status in _TRANSIENT_STATUS or status >= 500:
        wait = http_retries.asked_wait(response.headers)
        raise http_retries.TransientError(f"HTTP status {status} {response.reason}", wait)
    if status not in (200, 206):
        raise HttpStatusError(url, response)
