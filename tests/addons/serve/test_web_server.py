"""Clients that send half a request, read no answer, come in masses or send garbage; and the end of a server."""

import asyncio
import contextlib
import http.client
import itertools
import json
import logging
import resource
import signal
import socket
import threading
import time

import pytest

from limba.addons.serve import web_server
from limba.addons.serve.web_server import Times

_HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
_CLOSE = b"Connection: close\r\n"
_LONGEST_S = 30  # Of a wait that ends at once, however busy the machine is.


async def _echo(scope, receive, send):
    """Answers with the body."""
    body, message = b"", {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def started(monkeypatch):
    """Starts a server of an application in a thread: itself, the thread and the port.

    `sent` are requests of clients that have connected before: the last value is their connections.
    """
    running = []

    def start(app, times, sent=()):
        async def for_requests(scope, receive, send):
            assert scope["type"] == "http"  # It has no lifespan.
            await app(scope, receive, send)

        listening_at = socket.create_server(("127.0.0.1", 0))
        port = listening_at.getsockname()[1]
        clients = [_connect(port, request) for request in sent]
        server = web_server.Server(for_requests, times)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening_at]})
        thread.start()
        running.append((server, thread))
        _wait_until(lambda: server.started)
        return server, thread, port, *([clients] if clients else [])

    yield start
    monkeypatch.setattr(web_server, "_GRACE_S", 0)
    for server, thread in running:
        server.should_exit = server.force_exit = True
        thread.join(_LONGEST_S)


def _wait_until(is_so):
    ends_at = time.monotonic() + _LONGEST_S
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def _connect(port, sent=b""):
    connection = socket.create_connection(("127.0.0.1", port), timeout=_LONGEST_S)
    connection.sendall(sent)
    return connection


def _is_closed(connection):
    """Whether the server closes a connection; what it sends before is read."""
    with connection, contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return True


def _ask(port, body=b"text"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LONGEST_S)
    connection.request("POST", "/", body)
    with contextlib.closing(connection):
        return connection.getresponse().read()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST / HT",
        _HEAD,
        _HEAD + b"Content-Length: 1000\r\n\r\nx",
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
        _HEAD + b"Content-Length: 1\r\n\r\nx" + _HEAD,  # after an answer
    ],
)
def test_half_a_request_is_closed(started, sent):
    _, _, port = started(_echo, Times(timeout_s=0.3))
    assert _is_closed(_connect(port, sent))


@pytest.mark.parametrize("head", [_HEAD, _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"])
def test_a_request_that_never_ends_is_closed_though_it_goes_on(started, head):
    _, _, port = started(_echo, Times(timeout_s=0.3))
    more = b"1\r\nx\r\n" if head.endswith(b"\r\n\r\n") else b"a: b\r\n"
    with _connect(port, head) as connection, pytest.raises(ConnectionError):
        for _ in range(_LONGEST_S * 50):
            connection.sendall(more)
            time.sleep(0.02)


def test_an_answer_that_nobody_reads_is_dropped(started):
    async def much(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(64 << 20)})

    server, _, port = started(much, Times(timeout_s=0.3))
    with _connect(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        _wait_until(lambda: server.server_state.total_requests)
        _wait_until(lambda: not server.server_state.connections)


def test_a_stream_that_nobody_reads_is_dropped_and_the_application_learns_it(started):
    ended = threading.Event()

    async def endless(scope, receive, send):
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while (await asyncio.wait_for(_received(receive), 0.001)) is None:
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        finally:
            ended.set()

    async def _received(receive):
        with contextlib.suppress(TimeoutError):
            message = await asyncio.wait_for(receive(), 0.0005)
            return message if message["type"] == "http.disconnect" else None

    server, _, port = started(endless, Times(timeout_s=60, answer_s=0.3))
    with _connect(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        assert ended.wait(_LONGEST_S)
        _wait_until(lambda: not server.server_state.connections)


def test_connections_without_a_request_make_room(started, monkeypatch, caplog):
    monkeypatch.setattr(web_server, "most_connections", lambda: 8)
    monkeypatch.setattr(web_server._once_a_minute, "_passed", {})
    server, _, port = started(_echo, Times())
    held = [_connect(port, _HEAD + b"Content-Length: 1000\r\n\r\nx") for _ in range(40)]
    assert _ask(port, b"honest") == b"honest" and len(server.server_state.connections) <= 8
    assert [x.getMessage() for x in caplog.records if x.name == "limba.addons.serve.web_server"] == [
        "All 8 connections are in use: those that wait longest for a request make room for others."
    ]
    for connection in held:
        connection.close()


def test_connections_stay_while_nobody_waits_for_their_room(started, monkeypatch):
    monkeypatch.setattr(web_server, "most_connections", lambda: 4)
    monkeypatch.setattr(web_server, "_PATIENCE_S", -1)
    server, _, port, clients = started(_echo, Times(), [b""] * 3)
    _wait_until(lambda: len(server.server_state.connections) == 3)
    clients.append(_connect(port))
    _wait_until(lambda: len(server.server_state.connections) == 4)
    for number, connection in enumerate(clients):
        connection.sendall(_request(b"%d" % number, _CLOSE))
        assert _last_line(connection) == b"%d" % number


def test_a_connection_counts_once_while_its_task_ends(monkeypatch):
    """Counted twice, the last place but one was taken for the last, and the oldest connection was cut."""
    monkeypatch.setattr(web_server, "most_connections", lambda: 2)
    server, connection = web_server.Server(_echo, Times()), object()
    server.server_state.connections.add(connection)
    server._opening["its task"] = connection
    assert not server._is_full()
    server._opening["another task"] = object()
    assert server._is_full()


def test_requests_that_are_worked_on_make_no_room(started, monkeypatch):
    monkeypatch.setattr(web_server, "most_connections", lambda: 4)
    monkeypatch.setattr(web_server, "_PATIENCE_S", 0.02)

    async def slow(scope, receive, send):
        await asyncio.sleep(0.1)
        await _echo(scope, receive, send)

    texts = [b"%d" % number for number in range(20)]
    times = Times(answer_s=60)
    *_, clients = started(slow, times, [_request(text, _CLOSE) for text in texts])
    assert [_last_line(connection) for connection in clients] == texts


def test_answers_without_end_make_room(started, monkeypatch):
    monkeypatch.setattr(web_server, "most_connections", lambda: 4)
    monkeypatch.setattr(web_server, "_PATIENCE_S", 0.02)

    async def page(scope, receive, send):
        if scope["method"] == "GET":
            await asyncio.sleep(_LONGEST_S)
        await _echo(scope, receive, send)

    endless = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    *_, clients = started(page, Times(), [*[endless] * 8, _request(b"honest", _CLOSE)])
    assert _last_line(clients.pop()) == b"honest"
    for connection in clients:
        connection.close()


def test_answers_that_nobody_reads_make_room(started, monkeypatch):
    monkeypatch.setattr(web_server, "most_connections", lambda: 4)
    monkeypatch.setattr(web_server, "_PATIENCE_S", 0.02)

    async def much(scope, receive, send):
        if scope["method"] == "POST":
            await _echo(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})

    unread = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    *_, clients = started(much, Times(answer_s=60), [*[unread] * 8, _request(b"honest", _CLOSE)])
    assert _last_line(clients.pop()) == b"honest"
    for connection in clients:
        connection.close()


def test_errors_of_one_place_are_logged_once_a_minute(started, monkeypatch, caplog):
    monkeypatch.setattr(web_server._once_a_minute, "_passed", {})

    async def fails(scope, receive, send):
        if scope["path"] == "/other":
            raise RuntimeError("other")
        raise KeyError(scope["path"])

    _, _, port = started(fails, Times())
    for path in (b"/1", b"/2", b"/other", b"/3"):
        with _connect(port, b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path) as connection:
            assert connection.recv(12) == b"HTTP/1.1 500"
    assert [repr(x.exc_info[1]) for x in caplog.records if x.exc_info] == ["KeyError('/1')", "RuntimeError('other')"]


def test_clients_that_ask_on_and_on_keep_nobody_out(started, monkeypatch):
    """Each of them has sent 200 requests at once, on each of four connections."""
    monkeypatch.setattr(web_server, "most_connections", lambda: 4)
    answered = []

    async def counted(scope, receive, send):
        await _echo(scope, receive, send)
        answered.append(scope)

    *_, clients = started(counted, Times(), [*[_request(b"again") * 200] * 4, _request(b"honest", _CLOSE)])
    assert _last_line(clients.pop()) == b"honest" and len(answered) < 200
    for connection in clients:
        connection.close()


def _request(body, headers=b""):
    return _HEAD + headers + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def _last_line(connection):
    with connection:
        return connection.makefile("rb").read().rpartition(b"\r\n")[2]


@pytest.mark.parametrize(("limit", "expected"), [(128, 86), (100_000, 512), (resource.RLIM_INFINITY, 512)])
def test_connections_leave_descriptors_for_files(monkeypatch, limit, expected):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    monkeypatch.setattr(web_server, "_open_descriptors", lambda: 10)
    assert web_server.most_connections() == expected


def test_a_client_that_leaves_behind_a_second_request_ends_the_work_on_the_first(started, monkeypatch):
    monkeypatch.setattr(web_server, "_LOOK_S", 0.05)
    begun, ended = threading.Event(), threading.Event()

    async def endless(scope, receive, send):
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    _, _, port = started(endless, Times())
    with _connect(port, 2 * (_HEAD + b"Content-Length: 0\r\n\r\n")):
        assert begun.wait(_LONGEST_S) and not ended.wait(0.2)
    assert ended.wait(_LONGEST_S)


def test_clients_that_leave_before_they_are_taken_cost_nothing(started):
    calls, standing = [], threading.Event()

    async def counted(scope, receive, send):
        calls.append(scope)
        standing.wait(_LONGEST_S if len(calls) == 1 else 0)  # The whole process stands still.
        await _echo(scope, receive, send)

    _, _, port = started(counted, Times())
    with _connect(port, _HEAD + b"Content-Length: 0\r\n\r\n"):
        _wait_until(lambda: calls)
        for _ in range(5):
            _connect(port, _HEAD + b"Content-Length: 0\r\n\r\n").close()
        standing.set()
        assert _ask(port) == b"text"
    assert len(calls) == 2


def test_a_process_without_descriptors_for_clients(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (40, 40))
    with pytest.raises(ValueError, match="may open 40 files, which leaves none for clients; raise `ulimit -n`"):
        web_server.most_connections()


def test_what_has_connected_before_a_signal_is_answered(started, monkeypatch):
    """Also where it has to wait for room: 30 clients, and 4 at a time."""
    monkeypatch.setattr(web_server, "most_connections", lambda: 4)

    async def slow(scope, receive, send):
        await asyncio.sleep(0.05)
        await _echo(scope, receive, send)

    texts = [b"%d" % number for number in range(30)]
    server, thread, port, clients = started(slow, Times(), map(_request, texts))
    server.handle_exit(signal.SIGTERM, None)
    answers = [connection.makefile("rb").read() for connection in clients]
    assert [answer.rpartition(b"\r\n")[2] for answer in answers] == texts
    assert b"connection: close" in answers[-1]
    thread.join(_LONGEST_S)
    assert not thread.is_alive()
    with pytest.raises(ConnectionError):
        _connect(port)
    for connection in clients:
        connection.close()


@pytest.mark.parametrize("rest_s", [0.1, 600])
def test_half_a_request_and_an_answer_that_does_not_come_hold_no_server_at_its_end(started, monkeypatch, rest_s):
    working = threading.Event()

    async def never(scope, receive, send):
        working.set()
        while (await receive())["type"] != "http.disconnect":
            pass

    monkeypatch.setattr(web_server, "_REST_S", rest_s)
    server, thread, port = started(never, Times(timeout_s=600, answer_s=None, ending_s=0.5))
    held = [_connect(port, sent) for sent in (b"POST / HT", _HEAD + b"Content-Length: 9\r\n\r\nx", b"")]
    held.append(_connect(port, _HEAD + b"Content-Length: 1\r\n\r\nx"))
    assert working.wait(_LONGEST_S)
    server.handle_exit(signal.SIGTERM, None)
    thread.join(_LONGEST_S)
    assert not thread.is_alive()
    assert all(map(_is_closed, held))


def test_half_a_request_at_the_signal_is_answered_when_it_is_whole(started):
    server, thread, port = started(_echo, Times())
    with _connect(port, _HEAD + b"Content-Le") as connection:
        _wait_until(lambda: any(x.conn.trailing_data[0] for x in list(server.server_state.connections)))
        server.handle_exit(signal.SIGTERM, None)
        _wait_until(lambda: server.has_closed_doors)
        connection.sendall(b"ngth: 4\r\n\r\nlate")
        assert connection.makefile("rb").read().endswith(b"\r\n\r\nlate")
    thread.join(_LONGEST_S)
    assert not thread.is_alive()


def test_a_request_for_a_websocket_is_answered_as_any_other(started, caplog):
    _, _, port = started(_echo, Times())
    upgrade = b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    with _connect(port, _request(b"text", upgrade)) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert not [x for x in caplog.records if x.levelno >= logging.WARNING]


def test_behind_a_request_with_two_lengths_nothing_is_read(started):
    _, _, port = started(_echo, Times())
    two = b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n4\r\ntext\r\n0\r\n\r\n"
    with _connect(port, _HEAD + two + _request(b"hidden")) as connection:
        answer = connection.makefile("rb").read()
    assert answer.endswith(b"connection: close\r\n\r\ntext") and answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("is_answered", [False, True])
def test_garbage_in_a_body_ends_the_request_and_one_line_is_logged(started, monkeypatch, caplog, is_answered):
    monkeypatch.setattr(web_server._once_a_minute, "_passed", {})
    left = threading.Semaphore(0)

    async def app(scope, receive, send):
        if is_answered:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
        while (await receive())["type"] != "http.disconnect":
            pass
        left.release()
        await _echo(scope, receive, send)

    _, _, port = started(app, Times())
    for _ in range(5):
        connection = _connect(port, _HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        if is_answered:
            assert connection.recv(12) == b"HTTP/1.1 401"
        connection.sendall(b"ZZ\r\n")
        assert _is_closed(connection) and left.acquire(timeout=_LONGEST_S)
    messages = [x.getMessage() for x in caplog.records if x.levelno >= logging.WARNING]
    assert messages == ["Invalid HTTP request received."]


def test_a_long_request_is_read_in_parts(started):
    server, _, port = started(_echo, Times())
    body = json.dumps(list(range(50_000))).encode()
    assert _ask(port, body) == body
    with _connect(port):
        _wait_until(lambda: server.server_state.connections)
        (connection,) = server.server_state.connections
        assert len(connection.get_buffer(-1)) == 1024


def test_bodies_in_tiny_chunks_are_parsed_in_turns(started, monkeypatch):
    """A connection parses a few of its chunks, then others have their turn, also those that have sent one request."""
    turns = []
    parsed = web_server._Parser.next_event

    def counted(parser):
        event = parsed(parser)
        turns.append(parser)
        return event

    monkeypatch.setattr(web_server._Parser, "next_event", counted)
    chunks = _HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 300 + b"0\r\n\r\n"
    *_, clients = started(_echo, Times(), [*[chunks] * 4, _request(b"honest", _CLOSE)])
    assert [_last_line(client) for client in clients] == [*[b"x" * 300] * 4, b"honest"]
    # A turn is 16 events and the call that finds none left.
    lengths = {}
    for parser, turn in itertools.groupby(turns):
        lengths.setdefault(parser, []).append(len(list(turn)))
    (*slow, honest) = lengths.values()
    assert len(slow) == 4 and all(max(of_one) <= 34 and sum(of_one) > 300 for of_one in slow)
    assert sum(honest) <= 5


@pytest.mark.parametrize("head", [_HEAD, _HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"])
def test_headers_of_too_many_lines_are_refused_before_they_are_parsed(started, head):
    _, _, port = started(_echo, Times())
    with _connect(port, head + b"a:\r\n" * 100) as connection:
        connection.sendall(b"\r\n")
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
    with _connect(port, head + b"a:\r\n" * 200) as connection:
        assert connection.recv(12) == b"HTTP/1.1 400"
