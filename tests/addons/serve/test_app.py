"""The endpoints, with an engine that answers in capitals."""

import asyncio
import base64
import gc
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fastapi.testclient import TestClient

from limba.addons.serve import app, page, request_fields, web_guard
from limba.addons.serve.base_engine import Reply
from tests.addons.serve.small_service import UpperCase, service


@pytest.fixture
def client():
    made = service()
    with TestClient(app.make_app(made)) as opened:
        yield opened
    made.batcher.close()


def _ask(client, **body):
    return client.post("/v1/completions", json=body)


def test_a_completion(client):
    reply = _ask(client, model="mine", prompt=["a b", "c"], max_tokens=5, temperature=0.5, n=1, top_p=1, stop=None)
    found = reply.json()
    assert reply.status_code == 200 and found["object"] == "text_completion" and found["model"] == "mine"
    assert [(x["index"], x["text"], x["finish_reason"]) for x in found["choices"]] == [
        (0, "A B", "stop"),
        (1, "C", "stop"),
    ]
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert _ask(client, prompt="a").json()["choices"][0]["text"] == "A"


def test_vectors(client):
    found = client.post("/v1/embeddings", json={"input": ["abc", "a b"], "encoding_format": "float"}).json()
    assert [x["embedding"] for x in found["data"]] == [[3, 0.5], [3, 0.5]] and found["object"] == "list"
    assert found["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    (row,) = client.post("/v1/embeddings", json={"input": "abc", "encoding_format": "base64"}).json()["data"]
    assert np.frombuffer(base64.b64decode(row["embedding"]), "<f4").tolist() == [3, 0.5]


def test_a_stream_of_an_engine_without_tokens_has_whole_answers(client):
    text = " two  words,\nand more "
    with client.stream("POST", "/v1/completions", json={"prompt": [text, "b"], "stream": True}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    choices = [choice for line in lines[:-1] for choice in json.loads(line)["choices"]]
    pieces = [[x["text"] for x in choices if x["index"] == index] for index in (0, 1)]
    assert ["".join(x) for x in pieces] == [text.upper(), "B"] and len(pieces[0]) == 2
    assert [x["finish_reason"] for x in choices if x["finish_reason"]] == ["stop", "stop"]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_stream_ends_with_its_tokens_where_they_are_asked_for(client, wanted):
    body = {"prompt": ["a b", "c"], "stream": True, "stream_options": {"include_usage": wanted}, "seed": 3}
    with client.stream("POST", "/v1/completions", json=body) as reply:
        lines = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    events = [json.loads(line) for line in lines[:-1]]
    assert lines[-1] == "[DONE]" and all(event["choices"] for event in events[:-1])
    whole = client.post("/v1/completions", json={"prompt": ["a b", "c"]}).json()["usage"]
    assert whole["prompt_tokens"] == 3 and events[-1].get("usage") == (whole if wanted else None)


def test_each_of_twenty_clients_gets_its_own_answer():
    engine = UpperCase(0.02)
    made = service(engine, max_batch=8, max_wait_ms=20)
    with TestClient(app.make_app(made)) as client, ThreadPoolExecutor(20) as clients:
        texts = [f"client {number} asks" for number in range(100)]
        replies = list(clients.map(lambda text: _ask(client, prompt=text).json(), texts))
    made.batcher.close()
    assert [reply["choices"][0]["text"] for reply in replies] == [text.upper() for text in texts]
    assert sum(engine.batches) == 100 and max(engine.batches) <= 8 and len(engine.batches) < 50


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"no json", 400, "The body is not JSON"),
        (b"[1]", 400, "The body holds a list of 1; it is one object"),
        (b'{"prompt": ' + b"[" * 5000, 400, "The body: line 1 has more than 200 brackets"),
        (b'{"prompt": "\xff"}', 400, "The body"),
        ({}, 422, "prompt is null; it is a text, or a list of texts."),
        ({"prompt": [1, 2]}, 422, "prompt is [1, 2]; it is a text"),
        ({"prompt": []}, 422, "prompt is []; it is a text"),
        ({"prompt": ["a", " "]}, 422, "prompt: text 2 of 2 is empty"),
        ({"prompt": "a", "max_tokens": 101}, 422, "max_tokens is 101; it is a whole number from 1 to 100."),
        ({"prompt": "a", "max_tokens": True}, 422, "max_tokens is true; it is a whole number"),
        ({"prompt": "a", "temperature": -1}, 422, "temperature is -1; it is a number from 0"),
        (b'{"prompt": "a", "temperature": NaN}', 422, "temperature is nan"),
        (b'{"prompt": "a", "temperature": 1' + b"0" * 400 + b"}", 422, "temperature is 1000000000"),
        ({"prompt": "a", "n": 2}, 422, "n is 2; it is 1: a text has one answer."),
        ({"prompt": "a", "stream": "yes"}, 422, "stream is 'yes'; it is true or false."),
        ({"prompt": "a", "seed": 3, "temperature": 0.5}, 422, "seed is 3; it is a whole number at a temperature of 0"),
        ({"prompt": "a", "seed": "x"}, 422, "seed is 'x'; it is a whole number"),
        (
            {"prompt": "a", "stream_options": {"include_usage": True}},
            422,
            'stream_options is {"include_usage": true}; it',
        ),
        ({"prompt": "a", "stream": True, "stream_options": {"x": 1}}, 422, 'stream_options is {"x": 1}; it is for'),
        (
            {"prompt": "a", "stream": True, "stream_options": {"include_usage": 1}},
            422,
            'stream_options is {"include_usage": 1}; it is {"include_usage": true}, or false.',
        ),
        ({"prompt": "a", "top_p": 0.5}, 422, "top_p is 0.5; it is 1, or left out"),
        ({"prompt": "a", "stop": ["x"]}, 422, 'stop is ["x"]; it is [] or "", or left out'),
        ({"prompt": "a", "promt": "b"}, 422, "There is no field 'promt'; there are model, prompt"),
        ({"prompt": "a", "model": "other"}, 404, "model is 'other'; this server has 'mine'"),
        ({"prompt": "a b c d e f g"}, 413, "A text has 7 tokens; at most 6 are taken."),
        ({"prompt": ["a"] * 65}, 413, "prompt has 65 texts; at most 64 are taken at once."),
        (b'{"prompt": "' + b"a" * app.MOST_BYTES, 413, "The body is too long; at most 1,048,576 bytes are taken."),
    ],
)
def test_what_cannot_be_asked(client, body, status, words):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    reply = client.post("/v1/completions", content=content)
    assert reply.status_code == status, reply.text
    assert reply.json()["error"]["message"].startswith(words)


def test_what_cannot_be_embedded(client):
    reply = client.post("/v1/embeddings", json={"input": "a", "encoding_format": "int8"})
    assert reply.status_code == 422
    assert reply.json()["error"]["message"].startswith('encoding_format is \'int8\'; it is "float" or "base64"')
    assert client.post("/v1/embeddings", json={"input": 3}).json()["error"]["param"] == "input"


def test_a_body_whose_length_is_not_declared_is_cut(client):
    pieces = (b"a" * 65536 for _ in range(40))
    assert client.post("/v1/completions", content=pieces).status_code == 413
    guarded = TestClient(web_guard.Guard(client.app, [], ["/v1/completions"]), base_url="http://localhost")
    assert guarded.post("/v1/completions", content=(b"a" * 65536 for _ in range(40))).status_code == 413


def test_other_paths_and_methods(client):
    reply = client.get("/v1/complete")
    assert reply.status_code == 404 and "There are /, /health" in reply.json()["error"]["message"]
    assert client.get("/v1/completions").status_code == 405
    assert client.get("/docs").status_code == client.get("/openapi.json").status_code == 404


def test_one_model_and_chats(client):
    assert client.get("/v1/models/mine").json()["id"] == "mine"
    assert client.get("/v1/models/other").status_code == 404
    reply = client.post("/v1/chat/completions", json={"messages": []})
    assert reply.status_code == 404 and "use /v1/completions" in reply.json()["error"]["message"]


def test_an_answer_that_is_not_finite(client, caplog):
    reply = _ask(client, prompt=["fine", "broken"])
    assert reply.status_code == 500 and "gives no finite answer" in reply.json()["error"]["message"]
    assert "not finite" in caplog.text and _ask(client, prompt="fine").status_code == 200


def test_an_engine_that_fails_is_500_and_the_next_request_is_answered(client, monkeypatch):
    def fail(self, texts):
        raise RuntimeError("hush")

    opened = TestClient(client.app, raise_server_exceptions=False)
    with monkeypatch.context() as patch:
        patch.setattr(UpperCase, "run", fail)
        reply = _ask(opened, prompt="a")
    assert reply.status_code == 500
    assert reply.json()["error"]["message"] == "The server failed (RuntimeError); its log says where."
    assert _ask(opened, prompt="a").status_code == 200
    assert 'limba_requests_total{path="/v1/completions",status="500"} 1.0' in opened.get("/metrics").text


def test_a_token():
    made = service(token="s3cret")
    client = TestClient(app.make_app(made))
    for headers in ({}, {"Authorization": "Bearer s3cre"}, {"Authorization": "s3cret"}, {"Authorization": "Bearer é"}):
        sent = {name: value.encode("latin-1") for name, value in headers.items()}
        for reply in (
            client.post("/v1/completions", json={"prompt": "a"}, headers=sent),
            client.get("/metrics", headers=sent),
        ):
            assert reply.status_code == 401 and "Authorization: Bearer TOKEN" in reply.json()["error"]["message"]
    with client:
        wrong = client.get("/metrics", headers={"Authorization": "Bearer other"}).json()["error"]["message"]
        assert wrong.startswith("The token is wrong; ")
        assert client.get("/v1/models", headers={"Authorization": "bearer s3cret"}).status_code == 200
        right = {"Authorization": "Bearer s3cret"}
        assert client.post("/v1/completions", json={"prompt": "a"}, headers=right).status_code == 200
        assert client.get("/v1/models", headers=right).json()["data"][0]["id"] == "mine"
        assert client.get("/health").json() == {"status": "ok", "model": "mine"}
        counted = client.get("/metrics", headers=right).text
    assert 'limba_requests_total{path="/v1/completions",status="401"} 4.0' in counted
    made.batcher.close()


def _scope(path, host="localhost", method="GET"):
    """Of a request, for the application without a server."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", host.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


@pytest.mark.parametrize("host", ["localhost", "a/health?", "a/health#", "a/?", "/health"])
def test_no_host_header_takes_the_place_of_the_token(host):
    """The path counts by which a request is routed; older versions of Starlette make `request.url` of the header."""
    made = service(token="s3cret")
    called = []
    application = app.make_app(made)
    scope = _scope("/v1/models", host)

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        called.append(message)

    asyncio.run(application(scope, receive, send))
    made.batcher.close()
    assert called[0]["status"] == 401


class _Held(UpperCase):
    def __init__(self):
        super().__init__()
        self.gate, self.busy = threading.Event(), threading.Event()

    def run(self, texts):
        self.busy.set()
        assert self.gate.wait(20)
        return super().run(texts)


def test_a_full_queue_and_an_answer_that_takes_too_long():
    engine = _Held()
    made = service(engine, max_queue=2, max_batch=1, max_wait_ms=0, timeout_s=0.5)
    with TestClient(app.make_app(made)) as client, ThreadPoolExecutor(3) as clients:
        first = clients.submit(_ask, client, prompt="first")
        assert engine.busy.wait(20)
        others = clients.submit(_ask, client, prompt=["second", "third"])
        while len(made.batcher) < 2:
            pass
        refused = _ask(client, prompt="fourth")
        assert refused.status_code == 503 and refused.headers["Retry-After"] == "1"
        assert refused.json()["error"]["message"].startswith("The queue is full: 2 texts wait.")
        assert "limba_queue_length 2.0" in client.get("/metrics").text
        for late in (first, others):
            assert late.result(20).status_code == 504
            assert late.result().json()["error"]["message"] == "There was no answer within 0.5 seconds."
        engine.gate.set()
        assert _ask(client, prompt="fifth").json()["choices"][0]["text"] == "FIFTH"
        assert engine.batches == [1, 1], "what nobody waits for is not run"
    made.batcher.close()


class _SlowReader(UpperCase):
    def __init__(self):
        super().__init__()
        self.lines = []

    def read(self, text, *settings):
        self.lines.append(text)
        time.sleep(0.01)
        return super().read(text, *settings)


class _Client:
    """A request whose client stays, or has left."""

    def __init__(self, stays=True):
        self._stays = stays

    async def receive(self):
        if self._stays:
            await asyncio.sleep(60)
        return {"type": "http.disconnect"}


@pytest.mark.parametrize("method", ["replies", "stream"])
@pytest.mark.parametrize(
    ("timeout_s", "stays", "words"), [(0.1, True, "There was no answer within"), (60, False, "The client has left")]
)
def test_texts_are_read_no_longer_than_somebody_waits(method, timeout_s, stays, words):
    engine = _SlowReader()
    made = service(engine, timeout_s=timeout_s)
    with pytest.raises(request_fields.RequestError, match=words):
        asyncio.run(getattr(made, method)(_Client(stays), ["a"] * 64))  # It returns when the thread has ended.
    made.batcher.close()
    assert len(engine.lines) < 64


def test_one_text_does_not_wait_until_all_of_another_request_are_read():
    engine = _SlowReader()
    made = service(engine, max_queue=256)

    async def ask():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await asyncio.gather(*(made.replies(_Client(), lines) for lines in (["a"] * 32, ["a"] * 32, ["b"])))

    asyncio.run(ask())
    made.batcher.close()
    assert engine.lines.index("b") == 16


def test_clients_that_leave_print_nothing(caplog):
    """What they asked is taken back, and no future's exception is left for asyncio to print."""
    engine = _Held()
    made = service(engine, max_batch=1, max_wait_ms=0)

    async def ask(application, is_stream):
        body = json.dumps({"prompt": ["a", "b"], "stream": is_stream}).encode()
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive():
            if (message := next(messages, None)) is None:
                await asyncio.sleep(0.1)
                return {"type": "http.disconnect"}
            return message

        async def send(message):
            pass

        await application(_scope("/v1/completions", method="POST"), receive, send)

    async def ask_all():
        application = app.make_app(made)
        asked = asyncio.gather(*(ask(application, is_stream) for is_stream in (False, True) * 10))
        await asyncio.wait_for(asked, 20)

    asyncio.run(ask_all())
    engine.gate.set()
    made.batcher.close()
    gc.collect()
    assert not caplog.records, caplog.text
    assert sum(engine.batches) <= 1


def test_websockets_do_not_pass_the_token():
    made = service(token="s3cret")
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(app.make_app(made)({**_scope("/v1/models"), "type": "websocket"}, None, send))
    made.batcher.close()
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_metrics(client):
    _ask(client, prompt="a b")
    _ask(client, prompt=1)
    client.get("/nowhere")
    text = client.get("/metrics").text
    for line in (
        'limba_requests_total{path="/v1/completions",status="200"} 1.0',
        'limba_requests_total{path="/v1/completions",status="422"} 1.0',
        'limba_requests_total{path="other",status="404"} 1.0',
        'limba_tokens_total{kind="prompt"} 2.0',
        'limba_tokens_total{kind="completion"} 2.0',
        "limba_queue_length 0.0",
        'limba_request_seconds_count{path="/v1/completions"} 2.0',
        "limba_batch_rows_count 1.0",
    ):
        assert line in text.splitlines(), line


def test_the_page(client):
    reply = client.get("/")
    assert "<textarea" in reply.text and 'id="of_token" hidden' in reply.text
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "://" not in reply.text, "nothing comes from elsewhere"
    whole = page.html("<b>", True, True, "<i>NAME</i> TASK", True, True)
    assert "<h1>&lt;b&gt;</h1>" in whole and ">&lt;i&gt;NAME&lt;/i&gt; TASK</button>" in whole and "hidden" not in whole
    assert "candidates: 4}" in whole and "candidates: 0}" in reply.text
    assert "Where words are missing write ___" in reply.text and "___" not in page.html("mine", False, False)


def test_the_page_of_a_server_with_a_token_has_no_text_of_the_run():
    for token, has_example in (("", True), ("s3cret", False)):
        made = service(token=token, example="A text of ___ data.")
        made.batcher.close()
        assert ("A text of ___ data." in made.page()) == has_example


def test_candidates_are_for_engines_that_have_them(client):
    reply = _ask(client, prompt="a", candidates=9)
    assert reply.json()["error"]["message"] == "candidates is 9; it is a whole number from 0 to 8."
    assert _ask(client, prompt="a", candidates=2, stream=True).status_code == 422
    words = app._candidates(Reply(candidates=[[("a b", 0.5)], []]))
    assert words == {"candidates": [[{"text": "a b", "probability": 0.5}], []]}
    assert "candidates" not in _ask(client, prompt="a", candidates=0).json()["choices"][0]


def test_nothing_of_a_text_or_a_token_is_logged(client, caplog, capfd):
    caplog.set_level("DEBUG")
    for body in ({"prompt": "hush"}, {"prompt": "hush", "n": "hush"}, {"prompt": "hush " * 7}):
        client.post("/v1/completions", json=body, headers={"Authorization": "Bearer hush"})
    logged = [
        record.getMessage() for record in caplog.records if record.name.startswith(("limba", "uvicorn", "fastapi"))
    ]
    assert not [line for line in logged if "hush" in line]
    assert "hush" not in "".join(capfd.readouterr())
