"""Answers token by token, over HTTP: the first comes before the last is computed, a client that leaves ends them."""

import http.client
import json
import threading
import time

import pytest

from limba.addons.serve import app, listening
from tests.addons.serve.small_service import UpperCase, service


class _Speller(UpperCase):
    """A token is a word. After the first two it waits until its gate opens."""

    def __init__(self):
        super().__init__()
        self.gate, self.given, self.has_left = threading.Event(), 0, threading.Event()

    def run(self, texts):
        for number in range(6):
            for text in texts:
                self.given += 1
                if text.listener(number):
                    self.has_left.set()
                    return super().run(texts)
            if number == 1:
                self.gate.wait(20)
            if self.gate.is_set():
                time.sleep(0.01)
        return super().run(texts)


@pytest.fixture
def spelling():
    """The engine, and the port of a server."""
    engine = _Speller()
    engine.service = made = service(engine, timeout_s=20)
    bound = listening.bind("127.0.0.1", 0)
    server = listening.make_server(app.make_app(made))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield engine, bound.getsockname()[1]
    engine.gate.set()
    server.should_exit = True
    thread.join(20)
    made.batcher.close()


def _asked(port, **body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/v1/completions", json.dumps({"stream": True, **body}))
    return connection, connection.getresponse()


def _event(reply):
    """The next event: an object, or a text."""
    while not (line := reply.readline().strip()):
        pass
    data = line.decode().removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)


def test_the_first_piece_comes_before_the_last_token_and_all_are_the_answer(spelling):
    engine, port = spelling
    connection, reply = _asked(port, prompt="one two  three, four five six")
    assert reply.getheader("content-type").startswith("text/event-stream")
    first = _event(reply)
    assert first["choices"][0] == {"index": 0, "text": "ONE", "logprobs": None, "finish_reason": None}
    assert first["object"] == "text_completion" and not engine.gate.is_set() and engine.given == 2
    engine.gate.set()
    events = [first]
    while events[-1] != "[DONE]":
        events.append(_event(reply))
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    assert "".join(x["text"] for x in choices) == "ONE TWO  THREE, FOUR FIVE SIX" and len(choices) >= 6
    assert [x["finish_reason"] for x in choices][-2:] == [None, "stop"]
    assert {event["id"] for event in events[:-1]} == {first["id"]}
    connection.close()


def test_a_client_that_leaves_ends_the_work(spelling):
    engine, port = spelling
    connection, reply = _asked(port, prompt="one two three four five six")
    assert _event(reply)["choices"][0]["text"] == "ONE"
    reply.close()
    connection.close()
    time.sleep(0.3)  # The server sees it.
    engine.gate.set()
    assert engine.has_left.wait(20) and engine.given < 6


def test_texts_of_a_stream_have_their_numbers(spelling):
    engine, port = spelling
    engine.gate.set()
    connection, reply = _asked(port, prompt=["a b c", "d e f"])
    found = {0: "", 1: ""}
    while (event := _event(reply)) != "[DONE]":
        found[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert found == {0: "A B C", 1: "D E F"}
    connection.close()


@pytest.mark.parametrize("leaves", [True, False], ids=["the client leaves", "time is over"])
def test_a_long_answer_as_a_whole_ends_when_nobody_waits(spelling, monkeypatch, leaves):
    engine, port = spelling
    monkeypatch.setattr(app, "_LONG", 5)
    if not leaves:
        engine.service.timeout_s = 0.3
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "a b c", "max_tokens": 6}))
    while engine.given < 2:
        time.sleep(0.01)
    if leaves:
        connection.close()
        ends_at = time.monotonic() + 20
        while b'status="499"' not in engine.service.metrics.text() and time.monotonic() < ends_at:
            time.sleep(0.01)
    else:
        assert connection.getresponse().status == 504
    engine.gate.set()
    assert engine.has_left.wait(20) and engine.given < 6
