"""An HTTP server whose clients are strangers: uvicorn, with limits of time and of connections.

A request has `timeout_s` to come whole, headers and body. Its answer has a time, too, and then `timeout_s` to be read.
A connection that takes longer is cut off.

There are at most `MOST_CONNECTIONS`, and no more than the process may open. Where more come, those that have waited
longest for a request, or for their client to read, make room. So clients that send nothing or half a request, or read
no answer, keep nobody out. Where each connection has a request that is worked on, those that come wait.

After a signal the server takes what comes for half a second, then what has come, answers it, and ends within
`ending_s`.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import math
import resource
import select
import signal
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from limba.addons.serve.web_guard import App, Message, Receive, Send

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 512
# Descriptors that are left for files and threads' pipes.
_OTHER_DESCRIPTORS = 32
_GRACE_S = 0.5
# A connection waits so long for its request before it makes room: that of an honest client is on its way.
_PATIENCE_S = 0.5
_RETRY_S = 0.05
# How often to look whether a client that is not read from has left.
_LOOK_S = 1.0
# At the end of the server, for the rest of a request, and for an answer to be read.
_REST_S = 5
_BACKLOG = 2048
_READ_BYTES = 1024
# Of a connection, until others have their turn. A usual request has three: its head, a body, its end.
_EVENTS_OF_A_TURN = 16
# Of a request's head, and of what stands behind a body in chunks.
_MOST_HEAD_BYTES = 16 * 1024
_MOST_HEAD_LINES = 128
_LENGTHS = {b"content-length", b"transfer-encoding"}
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _OnceAMinute(logging.Filter):
    """Passes a warning, and an error of one place, on once a minute, however often strangers cause it."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now, kind = time.monotonic(), f"{record.msg} {_place(record)}"
        if now - self._passed.get(kind, -math.inf) >= 60:
            self._passed[kind] = now
            return True
        return False


def _place(record: logging.LogRecord) -> str:
    """Where the exception of a record was raised; "" without one."""
    frames = list(traceback.walk_tb(record.exc_info[2])) if record.exc_info else []
    return f"{frames[-1][0].f_code.co_filename}:{frames[-1][1]}" if frames else ""


_once_a_minute = _OnceAMinute()


@dataclasses.dataclass(frozen=True)
class Times:
    """Limits, in seconds.

    Attributes:
      timeout_s: from the first byte of a request to its last, and from the end of an answer to the next request.
      answer_s: from the last byte of a request to the end of its answer; None is for answers without end, of which the
        oldest make room, too.
      ending_s: from a signal to the end.
    """

    timeout_s: float = 60
    answer_s: float | None = None
    ending_s: float = 60


class _Clocks:
    """What connections share.

    Attributes:
      waiting: connections without a whole request, with an answer that is not read or has no end, and since when; the
        oldest come first.
      ends_at: when the last connection is cut off, of the loop's time; None while the server runs.
    """

    def __init__(self, times: Times):
        self.times = times
        self.waiting: dict[Connection, float] = {}
        self.ends_at: float | None = None
        self._unparsed: dict[Connection, None] = {}
        self._is_parsing = False

    def parse_later(self, connection: "Connection") -> None:
        """Parses what is left of a connection's read, after what is left of others'.

        One connection has its turn at a time, and all together take half of the time: however many they are, and
        however often their clients come back.
        """
        self._unparsed[connection] = None
        if not self._is_parsing:
            self._is_parsing = True
            connection.loop.call_soon(self._parse_next)

    def _parse_next(self) -> None:
        connection = next(iter(self._unparsed))
        del self._unparsed[connection]
        begun = time.thread_time()
        try:
            connection.parse_on()
        finally:
            if self._unparsed:
                connection.loop.call_later(time.thread_time() - begun, self._parse_next)
            else:
                self._is_parsing = False


class _Parser(h11.Connection):
    """Says that it needs data after `_EVENTS_OF_A_TURN`, though it may have some."""

    events_left = 0

    def next_event(self) -> Any:
        if not self.events_left:
            return h11.NEED_DATA
        self.events_left -= 1
        return super().next_event()


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """A connection that is cut off when its client takes too long.

    It reads a kB, then others have their turn. A read that is many events, such as a body in chunks of one byte, is
    parsed in turns, too.
    """

    def __init__(self, *arguments: Any, clocks: _Clocks, **options: Any):
        super().__init__(*arguments, **options)
        self.conn: _Parser = _Parser(h11.SERVER, _MOST_HEAD_BYTES)
        self._clocks = clocks
        self._clock: asyncio.TimerHandle | None = None
        self._received = bytearray(_READ_BYTES)
        self._is_looked_at = False

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._received[:nbytes]))

    def parse_on(self) -> None:
        """Parses the next events of what has been read."""
        if not self.transport.is_closing():
            self.handle_events()
            if self.conn.events_left and not self.flow.read_paused:
                self.transport.resume_reading()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._clock is not None:
            self._clock.cancel()
        self._clocks.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_idle() and self.cycle is not None and self.cycle.response_complete:
            self._wait()  # The time between two requests is not that of the second.
        super().data_received(data)

    def handle_events(self) -> None:
        self.conn.events_left = _EVENTS_OF_A_TURN
        super().handle_events()
        if not self.conn.events_left:
            self.transport.pause_reading()
            self._clocks.parse_later(self)
        elif self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and self._num_lines() > _MOST_HEAD_LINES:
            self.send_400_response(f"More than {_MOST_HEAD_LINES} lines of headers.")
        if not self._is_answering():
            return
        if self.flow.read_paused and not self._is_looked_at:
            self._is_looked_at = True
            self._look()
        if not self.flow.write_paused and self._clocks.waiting.pop(self, None) is not None:
            self._set_clock(self._clocks.times.answer_s)
            if self._clocks.times.answer_s is None:  # It makes room after those that have no whole request for longer.
                self._clocks.waiting[self] = self.loop.time()

    def _look(self) -> None:
        """Drops a client that has left during its answer: its next request has paused reading, which would notice."""
        if not self.flow.read_paused or self.transport.is_closing():
            self._is_looked_at = False
        elif _has(self.transport.get_extra_info("socket"), select.POLLRDHUP):
            self.cut()
        else:
            self.loop.call_later(_LOOK_S, self._look)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._clocks.waiting.setdefault(self, self.loop.time())  # Who reads no answer makes room, too.

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._is_answering() and self._clocks.times.answer_s is not None:
            self._clocks.waiting.pop(self, None)

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def _should_upgrade(self) -> bool:
        return False  # uvicorn would warn that a package for websockets is missing.

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # Nobody waits for this answer any more.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.cut()

    def shutdown(self) -> None:
        """Ends after the request that is here or has begun, at once without one."""
        self._set_clock(_REST_S if self in self._clocks.waiting else None)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self._is_idle():
            super().shutdown()

    def cut(self) -> None:
        """Drops the connection, with what its client has not read."""
        self._clocks.waiting.pop(self, None)
        self.transport.abort()

    def _is_idle(self) -> bool:
        """Whether nothing of a request is here."""
        return self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]

    def _is_answering(self) -> bool:
        """Whether a whole request is here whose answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def _num_lines(self) -> int:
        """Of a head, or of what stands behind a body in chunks, that is not whole."""
        return self.conn.trailing_data[0].count(b"\n")

    def _wait(self) -> None:
        """Begins the time for a request."""
        self._clocks.waiting.pop(self, None)
        self._clocks.waiting[self] = self.loop.time()
        self._set_clock(self._clocks.times.timeout_s)

    def _set_clock(self, seconds: float | None) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        if (ends_at := self._clocks.ends_at) is not None:
            left = max(0.0, ends_at - self.loop.time())
            seconds = left if seconds is None else min(seconds, left)
        if seconds is not None:
            self._clock = self.loop.call_later(seconds, self.cut)


class Server(uvicorn.Server):
    """A server of an ASGI application. It logs no requests, and returns after a signal, where uvicorn raises it again.

    Args:
      greeting: is printed as soon as it listens.

    Attributes:
      has_closed_doors: whether it takes no connections any more, after a signal.
    """

    def __init__(self, app: App, times: Times, greeting: str = ""):
        self._clocks = _Clocks(times)
        config = uvicorn.Config(
            self._closing(app),
            loop="asyncio",
            http="h11",
            ws="none",
            access_log=False,
            log_level="warning",
            log_config=None,
            proxy_headers=False,
            server_header=False,
        )
        super().__init__(config)
        for warnings in (logger, logging.getLogger("uvicorn.error")):
            warnings.addFilter(_once_a_minute)
        self._greeting = greeting
        self._opening: dict[asyncio.Task, Connection] = {}
        self._most = most_connections()
        self.has_closed_doors = False

    def _closing(self, app: App) -> App:
        """The application; some answers are the last of their connection.

        Those after a signal; those while all connections are in use, so that a client that asks on and on on each of
        them keeps nobody out; and those to requests with two lengths: where such a request ends, a proxy may see
        otherwise, so what follows it is not taken for another one (RFC 9112).
        """

        async def closing(scope: Message, receive: Receive, send: Send) -> None:
            has_two_lengths = {name for name, _ in scope.get("headers", ())} >= _LENGTHS

            async def sending(message: Message) -> None:
                is_last = self.should_exit or self._is_full() or has_two_lengths
                if message["type"] == "http.response.start" and is_last:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
                await send(message)

            await app(scope, receive, sending)

        return closing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        for listening_at in sockets or []:
            listening_at.setblocking(False)
            listening_at.listen(_BACKLOG)
            self._listen(listening_at)
        if self._greeting:
            print(self._greeting, flush=True)

    def _listen(self, listening_at: socket.socket) -> None:
        if listening_at.fileno() >= 0:  # It is not closed.
            asyncio.get_running_loop().add_reader(listening_at, self._accept, listening_at)

    def _accept(self, listening_at: socket.socket) -> bool:
        """Takes connections while there is room; returns whether all that have come are taken."""
        loop = asyncio.get_running_loop()
        while self._has_room(listening_at):
            try:
                accepted, _ = listening_at.accept()
            except (BlockingIOError, InterruptedError):
                return True
            except ConnectionAbortedError:
                continue
            except OSError as error:  # The process, or the machine, has no descriptor left.
                logger.warning("No connection can be taken now (%s): they wait. Raise `ulimit -n`.", error.strerror)
                break
            if _has(accepted, select.POLLRDHUP):  # Its client has left: what it sent is not read.
                accepted.close()
                continue
            accepted.setblocking(False)
            self._open(accepted)
        loop.remove_reader(listening_at)
        loop.call_later(_RETRY_S, self._listen, listening_at)
        return False

    def _open(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection = Connection(self.config, self.server_state, self.lifespan.state, clocks=self._clocks)
        task = loop.create_task(loop.connect_accepted_socket(lambda: connection, accepted))
        self._opening[task] = connection
        task.add_done_callback(self._opening.pop)

    def _is_full(self) -> bool:
        # A connection that has been made is among both until its task has ended.
        made = self.server_state.connections
        return len(made) + sum(connection not in made for connection in self._opening.values()) >= self._most

    def _has_room(self, listening_at: socket.socket) -> bool:
        """Whether one more connection can be taken, or none has come; else others make room."""
        if not self._is_full() or not _has(listening_at, select.POLLIN):
            return True
        logger.warning(
            "All %d connections are in use: those that wait longest for a request make room for others.",
            self._most,
        )
        # What has come of their requests is read before. A process that stood still waited for nobody.
        loop = asyncio.get_running_loop()
        loop.call_soon(self._make_room, loop.time() - _PATIENCE_S)
        return False

    def _make_room(self, patient_since: float) -> None:
        oldest = itertools.islice(self._clocks.waiting.items(), 1 + self._most // 8)
        for connection in [connection for connection, since in oldest if since <= patient_since]:
            connection.cut()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Requests that were sent before the signal are on their way: uvicorn would reset their connections.
        loop = asyncio.get_running_loop()
        self._clocks.ends_at = loop.time() + _GRACE_S + self._clocks.times.ending_s
        await asyncio.sleep(_GRACE_S)
        for listening_at in sockets or []:
            while not self._accept(listening_at) and loop.time() < self._clocks.ends_at:
                await asyncio.sleep(_RETRY_S)
            loop.remove_reader(listening_at)
            listening_at.close()
        self.has_closed_doors = True
        await asyncio.sleep(_GRACE_S)
        await super().shutdown([])
        if self.force_exit:  # A second Ctrl-C: uvicorn would log that the application still waits for its end.
            await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _has(polled: Any, event: int) -> bool:
    """Whether a socket has an event: a connection that waits to be taken, or a client that has left."""
    asked = select.poll()
    asked.register(polled, event)
    return bool(asked.poll(0))


def most_connections() -> int:
    """How many connections this process can have. Raises ValueError if that is none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    left = limit - _open_descriptors() - _OTHER_DESCRIPTORS
    if left < 1:
        raise ValueError(f"The process may open {limit} files, which leaves none for clients; raise `ulimit -n`.")
    return min(MOST_CONNECTIONS, left)


def _open_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))
