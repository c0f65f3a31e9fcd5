"""Files of a server on the loopback that does what servers and lines do."""

import datetime
import http.server
import logging
import random
import re
import threading
import time

import pytest

from limba.files import awaited
from tasks.sources.remote_files import http_files, http_retries

CONTENT = random.Random(0).randbytes(300_000)


class Server:
    """Serves CONTENT with ranges. `behave(handler, number)` may answer the request instead, and says so with True."""

    def __init__(self):
        self.behave = lambda handler, number: False
        self.content = CONTENT
        self.requests: list[http.server.BaseHTTPRequestHandler] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *_):
                pass

            def do_GET(self):
                server.requests.append(self)
                if not server.behave(self, len(server.requests)):
                    self.send_part(len(server.content))

            def send_part(self, at_most, pause=0.0, **headers):
                """Sends what is asked for, or the first bytes of it and then nothing more."""
                first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups()
                content = server.content
                wanted = content[int(first) : int(last) + 1]
                self.send_response(206)
                self.send_header("Content-Length", str(len(wanted)))
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(wanted[:at_most])
                if at_most < len(wanted):
                    if pause:
                        time.sleep(pause)
                    self.close_connection = True

            def say(self, status, **headers):
                self.send_response(status)
                for name, value in ({"Content-Length": "0"} | headers).items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                return True

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def file(self, host="127.0.0.1", **options):
        return http_files.RemoteFile("a shard", f"http://{host}:{self.port}/a", len(CONTENT), **options)

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def waits(monkeypatch):
    """What is waited between requests, without waiting."""
    waits: list[float] = []
    monkeypatch.setattr(http_retries.time, "sleep", waits.append)
    return waits


def test_every_connection_breaks_in_the_middle(server, waits):
    def behave(handler, number):
        handler.send_part(10_000 + 7 * number)
        return True

    server.behave = behave
    assert server.file().open().read() == CONTENT
    assert len(server.requests) == len(waits) + 1 > 25
    assert max(waits) < 1.5  # each got further, so none was the second failure in a row
    ranges = [int(handler.headers["Range"].split("=")[1].split("-")[0]) for handler in server.requests]
    assert ranges == sorted(set(ranges))  # each went on where the last one stopped


def test_reading_here_and_there_with_failures(server, waits):
    rng = random.Random(1)
    server.behave = lambda handler, number: rng.random() < 0.25 and handler.say(rng.choice([429, 500, 502, 503, 504]))
    with server.file().open_parts() as file:
        for _ in range(40):
            begin, length = rng.randrange(len(CONTENT)), rng.randrange(5000)
            file.seek(begin)
            assert file.read(length) == CONTENT[begin : begin + length]
        assert file.seek(-10, 2) == len(CONTENT) - 10
        assert file.read() == CONTENT[-10:] and file.read() == b""
    assert 3 < len(waits) < 40


def test_waits_grow_and_end_with_the_last_cause(server, waits):
    server.behave = lambda handler, number: handler.say(500 if number < 14 else 504)
    with pytest.raises(http_files.BrokenFileError, match=r"a shard stays unreadable: 14 requests.*status 504 Gateway"):
        server.file().open().read()
    assert len(waits) == 13
    for number, wait in enumerate(waits):
        usual = min(2.0**number, 64.0)
        assert 0.5 * usual <= wait <= 1.5 * usual
    assert len({round(wait % 1, 6) for wait in waits}) > 5  # with jitter


def test_what_the_server_asks_for_is_waited(server, waits):
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=40)
    asked = [
        {"Retry_After": "17"},
        {"Retry_After": later.strftime("%a, %d %b %Y %H:%M:%S GMT")},
        {"RateLimit": '"resolvers";r=0;t=55'},
        {"Retry_After": "86400"},
        {"Retry_After": "soon"},
    ]
    server.behave = lambda handler, number: number <= len(asked) and handler.say(429, **asked[number - 1])
    assert server.file().open().read() == CONTENT
    assert waits[0] == 17 and 35 < waits[1] <= 40 and waits[2] == 55
    assert sum(waits[:4]) == pytest.approx(http_retries.LONGEST_RETRY_AFTER_SECONDS) and waits[4] <= 24


def test_stalled_and_crawling_connections(server, monkeypatch):
    monkeypatch.setattr(http_retries, "FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(http_files, "TIMEOUT_SECONDS", (1.0, 0.2))
    monkeypatch.setattr(http_files, "SLOW_AFTER_SECONDS", 0.3)

    def behave(handler, number):
        if number == 1:
            handler.send_part(5000, pause=0.5)  # then nothing, and the line stays open
            return True
        if number == 2:
            handler.send_part(0)
            return True
        if number == 3:
            first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers["Range"]).groups()
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {first}-{last}/{len(CONTENT)}")
            handler.send_header("Content-Length", str(int(last) + 1 - int(first)))
            handler.end_headers()
            for byte in CONTENT[int(first) : int(first) + 12]:
                handler.wfile.write(bytes([byte]))
                time.sleep(0.05)
            # The last request is a good one, which is not to end however busy the machine is.
            monkeypatch.setattr(http_files, "TIMEOUT_SECONDS", (60.0, 60.0))
            handler.close_connection = True
            return True
        monkeypatch.setattr(http_files, "SLOW_AFTER_SECONDS", 60.0)
        return False

    server.behave = behave
    assert server.file().open().read() == CONTENT
    assert len(server.requests) == 4


def test_a_connection_that_only_crawls_is_broken_in_the_end(server, monkeypatch, waits):
    monkeypatch.setattr(http_files, "SLOW_AFTER_SECONDS", 0.02)
    monkeypatch.setattr(http_files, "MIN_BYTES_PER_SECOND", 10**9)
    monkeypatch.setattr(http_retries, "MAX_FAILURES", 3)
    pause = threading.Event()

    def behave(handler, number):
        handler.wfile.write(
            f"HTTP/1.1 206 P\r\nContent-Range: bytes {handler.headers['Range'].split('=')[1]}/{len(CONTENT)}\r\n"
            f"Content-Length: {len(CONTENT)}\r\n\r\n".encode()
        )
        for _ in range(20):
            pause.wait(0.01)
            handler.wfile.write(b"x")
        handler.close_connection = True
        return True

    server.behave = behave
    with pytest.raises(http_files.BrokenFileError, match=r"3 requests.*only \d+ bytes came"):
        server.file().open().read()


def test_a_file_that_changes_is_refused(server, waits):
    def behave(handler, number):
        handler.send_part(1000 if number == 1 else 10**6, ETag=f'"{min(number, 2)}"')
        return True

    server.behave = behave
    with pytest.raises(http_files.BrokenFileError, match="a shard has changed at http"):
        server.file().open().read()
    server.behave = lambda handler, number: False
    server.content = CONTENT + b"more"
    with pytest.raises(http_files.BrokenFileError, match="has changed"):
        server.file().open().read()


def test_a_token_goes_to_its_host_only(server):
    """The hub redirects to storage, which is not told who asks."""

    def behave(handler, number):
        if handler.headers["Host"].startswith("localhost"):
            return handler.say(302, Location=f"http://127.0.0.1:{server.port}/stored")
        return False

    server.behave = behave
    file = server.file("localhost", headers=lambda: {"Authorization": "Bearer secret"})
    assert file.open().read() == CONTENT
    assert [handler.headers.get("Authorization") for handler in server.requests] == ["Bearer secret", None]
    assert server.requests[1].headers["Range"] == f"bytes=0-{len(CONTENT) - 1}"


@pytest.mark.parametrize(("status", "kind"), [(404, "BrokenFileError"), (401, "RefusedError"), (403, "RefusedError")])
def test_refusals_are_not_repeated(server, waits, status, kind):
    server.behave = lambda handler, number: handler.say(status, X_Error_Message="gated for you")
    with pytest.raises(
        RuntimeError, match=rf"a shard cannot be read: .* HTTP status {status} .*gated for you"
    ) as caught:
        server.file().open().read()
    assert type(caught.value).__name__ == kind and len(server.requests) == 1 and not waits


def test_sizes(server, waits):
    server.behave = lambda handler, number: number < 3 and handler.say(503)
    assert http_files.size_of(server.file().url) == len(CONTENT)
    server.behave = lambda handler, number: handler.say(200, Content_Length="", Connection="close")
    with pytest.raises(ValueError, match="does not say how long the file is"):
        http_files.size_of(server.file().url)
    server.behave = lambda handler, number: handler.say(503)
    with pytest.raises(http_files.BrokenFileError, match="6 requests in a row"):
        http_files.size_of(server.file().url)


def test_a_server_that_does_not_answer_is_named(server, monkeypatch, caplog):
    monkeypatch.setattr(awaited, "_FIRST_SECONDS", 0.3)
    monkeypatch.setattr(awaited, "_TICK_SECONDS", 0.1)
    caplog.set_level(logging.INFO)

    def behave(handler, number):
        time.sleep(1.5)
        return False

    server.behave = behave
    assert server.file().open().read() == CONTENT
    said = [text for text in caplog.messages if text.startswith("Waiting for ")]
    assert said and all(f"Waiting for http://127.0.0.1:{server.port}/a (" in text for text in said) and len(said) <= 3


def test_a_server_that_asks_to_wait_each_time_is_obeyed_for_five_minutes_in_all(server, waits):
    server.behave = lambda handler, number: handler.say(429, Retry_After="200")
    with pytest.raises(http_files.BrokenFileError, match="14 requests in a row"):
        server.file().open().read()
    assert waits[0] == 200 and waits[1] == 100 and sum(waits[2:]) <= 1.5 * (4 + 8 + 16 + 32 + 7 * 64)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "gopher://x/y", "http://[::"])
def test_a_redirect_to_what_is_no_address_ends_at_once(server, waits, location):
    server.behave = lambda handler, number: handler.say(302, Location=location)
    with pytest.raises(http_files.BrokenFileError, match=r"^a shard stays unreadable: a request failed, the last with"):
        server.file().open().read()
    for ask in (http_files.size_of, lambda url: http_files.fetch(url, dict)):
        with pytest.raises(http_files.BrokenFileError, match=r"^http://127.*: a request failed"):
            ask(server.file().url)
    assert waits == []


@pytest.mark.parametrize(
    "asked", ["Fri, 31 Dec 99999999999 23:59:59 GMT", "x" * 1000, "-1", "1 Jan 1 1:1:1 +99999999999999"]
)
def test_a_wait_that_is_none_is_not_obeyed(asked):
    assert http_retries.asked_wait({"Retry-After": asked}) is None


@pytest.mark.parametrize("length", ["9" * 5000, "99999999999999999999", "\xb2", "*", ""])
def test_a_length_that_is_none_names_the_address(server, length):
    server.behave = lambda handler, number: handler.say(206, Content_Range=f"bytes 0-0/{length}")
    with pytest.raises(ValueError, match=rf"^The server of {server.file().url} does not say how long the file is"):
        http_files.size_of(server.file().url)
