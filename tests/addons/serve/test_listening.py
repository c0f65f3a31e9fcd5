"""The end of a server: SIGTERM loses no request that was taken."""

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from limba.addons.serve import app, listening, web_server
from tests import house
from tests.addons.serve.small_service import service


@pytest.fixture
def server():
    """A process of its own that answers in batches of 4, each after 0.2 s: its port, and itself."""
    command = [sys.executable, "-m", "tests.addons.serve.small_service"]
    with subprocess.Popen(command, cwd=house.ROOT, stdout=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline())
        yield port, process
        process.kill()


def _ask(port, text):
    body = json.dumps({"prompt": text}).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/completions", body, timeout=30) as reply:
        return json.load(reply)["choices"][0]["text"]


def test_after_sigterm_what_was_taken_is_answered_and_nothing_more(server):
    port, process = server
    with ThreadPoolExecutor(16) as clients:
        asked = [clients.submit(_ask, port, f"text {number}") for number in range(16)]
        while _value(port, "limba_queue_length") < 8 and not all(x.done() for x in asked):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        answers = [x.result(30) for x in asked]
    assert answers == [f"TEXT {number}" for number in range(16)]
    assert process.wait(30) == 0 and process.stdout.read() == "ended\n"
    with pytest.raises(urllib.error.URLError):
        _ask(port, "late")


def test_a_request_that_is_on_its_way_at_the_signal_is_answered(monkeypatch):
    sent, sleep = threading.Event(), asyncio.sleep

    async def sleep_until_it_is_sent(seconds):
        """A busy machine may give the client its turn after the half second that it has."""
        await sleep(seconds)
        while not sent.is_set():
            await sleep(0.01)

    monkeypatch.setattr(web_server.asyncio, "sleep", sleep_until_it_is_sent)
    made, bound = service(), listening.bind("127.0.0.1", 0)
    server = listening.make_server(app.make_app(made))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    connection = http.client.HTTPConnection("127.0.0.1", bound.getsockname()[1], timeout=20)
    connection.connect()
    server.handle_exit(signal.SIGTERM, None)
    time.sleep(0.4)  # uvicorn looks for a signal ten times a second.
    connection.request("POST", "/v1/completions", b'{"prompt": "late"}')
    sent.set()
    assert json.load(connection.getresponse())["choices"][0]["text"] == "LATE"
    thread.join(20)
    assert not thread.is_alive()
    connection.close()
    made.batcher.close()


def test_a_second_ctrl_c_is_no_error_in_the_log(monkeypatch, caplog):
    monkeypatch.setattr(web_server, "_GRACE_S", 0)
    made, bound = service(), listening.bind("127.0.0.1", 0)
    server = listening.make_server(app.make_app(made))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    # An answer shows that the server's loop has begun: before that uvicorn ends without the application's end.
    connection = http.client.HTTPConnection("127.0.0.1", bound.getsockname()[1], timeout=20)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    connection.close()
    for _ in range(2):
        server.handle_exit(signal.SIGINT, None)
    thread.join(20)
    assert server.force_exit and not thread.is_alive() and not caplog.records
    made.batcher.close()


def _value(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        return next(float(line.split()[-1]) for line in reply.read().decode().splitlines() if line.startswith(name))


def test_where_no_server_can_listen():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"No server can listen at --host 127.0.0.1 --port {port} .*; give others"):
            listening.bind("127.0.0.1", port)
    with pytest.raises(ValueError, match="--port is 70000; it lies between 0"):
        listening.bind("127.0.0.1", 70000)
    with listening.bind("127.0.0.1", port) as bound:
        assert bound.getsockname()[1] == port
