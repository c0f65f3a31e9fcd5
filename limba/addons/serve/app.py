"""The endpoints, as a FastAPI application: it checks requests, hands texts to the batcher and writes the answers."""

import asyncio
import base64
import contextlib
import dataclasses
import hmac
import logging
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import fastapi
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from limba.addons.serve import page, request_fields
from limba.addons.serve.batcher import Batcher, QueueFullError
from limba.addons.serve.request_fields import Limits, RequestError
from limba.addons.serve.server_metrics import CONTENT_TYPE, ServerMetrics
from limba.addons.serve.streams import Streams
from limba.addons.serve.web_guard import App, Message, Receive, Send
from limba.files import json_text

logger = logging.getLogger(__name__)

# Of a request, which `limba.addons.serve.web_guard` cuts, too.
MOST_BYTES = 1 << 20
_OPEN = ("/", "/health")
_PATHS = (*_OPEN, "/metrics", "/v1/models", "/v1/completions", "/v1/embeddings")


# Tokens. While an answer may be longer, the engine is told after each token whether somebody still waits for it.
_LONG = 256
# So many texts of a request are read at once; then other requests have their turn.
_TEXTS_OF_A_TURN = 8


class Engine(Protocol):
    """What the server needs of `limba.addons.serve.base_engine.BaseEngine`."""

    has_blanks: bool
    has_candidates: bool
    decodes: bool

    def read(self, text: str, max_tokens: int = 0, temperature: float = 0.0, num_candidates: int = 0) -> Any: ...

    def run(self, texts: Sequence[Any]) -> Sequence[Any]: ...

    def partial(self, text: Any, ids: list[int]) -> str: ...


class Service:
    """A model with its queue: what the endpoints share.

    Args:
      timeout_s: seconds after which a request is given up.
      token: that each request must carry; "" asks for none.
      example: a text to ask, for the page.
    """

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        max_batch: int = 16,
        max_wait_ms: float = 5,
        timeout_s: float = 60,
        token: str = "",
        example: str = "",
    ):
        self.engine, self.limits, self.timeout_s, self.token = engine, limits, timeout_s, token
        self.example = example
        self.batcher = Batcher(self._run, max_batch, max_wait_ms / 1000, limits.max_texts)
        self.metrics = ServerMetrics(lambda: len(self.batcher))

    def _run(self, texts: Sequence[Any]) -> Sequence[Any]:
        self.metrics.add_batch(len(texts))
        return self.engine.run(texts)

    async def replies(self, request: fastapi.Request, lines: Sequence[str], *settings: Any) -> tuple[list[Any], int]:
        """The replies of the engine, and the tokens of the texts.

        Raises:
          RequestError: 413 or 422 for a text that cannot be read, 499 if the client has left, 500 for one without a
            finite answer, 503 if the queue is full, 504 if it takes too long.
        """
        ends_at = time.monotonic() + self.timeout_s
        is_left = False
        results: list[Future] = []
        async with _leaving(request) as leaving:
            try:
                texts = await self._awaited(self._read(lines, *settings), leaving, ends_at)
                asking = [
                    dataclasses.replace(text, listener=lambda token: is_left) if text.max_tokens > _LONG else text
                    for text in texts
                ]
                results = self._submit(asking)
                found = await self._awaited(_all_of(results), leaving, ends_at)
            finally:  # Nobody waits any more: what is queued is taken back, a long answer ends at its next token.
                is_left = True
                for result in results:
                    result.cancel()
        return [_finite(reply) for reply in found], sum(len(text.ids) for text in texts)

    async def stream(self, request: fastapi.Request, lines: Sequence[str], *settings: Any) -> Streams:
        """The answers as they come. Raises RequestError as `replies`, for what is wrong before the first token."""
        ends_at = time.monotonic() + self.timeout_s
        async with _leaving(request) as leaving:
            texts = await self._awaited(self._read(lines, *settings), leaving, ends_at)
        streams = Streams(self.engine.partial, texts, ends_at - time.monotonic())
        streams.expect(self._submit(streams.texts))
        return streams

    def page(self) -> str:
        """The page at `/`. Whoever has no token may see it, and nothing of the run's data."""
        engine, example = self.engine, "" if self.token else self.example
        return page.html(
            self.limits.name, engine.has_blanks, bool(self.token), example, engine.has_candidates, engine.decodes
        )

    def too_late(self) -> RequestError:
        return RequestError(504, f"There was no answer within {self.timeout_s:g} seconds.")

    async def _read(self, lines: Sequence[str], *settings: Any) -> list[Any]:
        """The texts of the engine. Nothing stops a thread from outside: each turn reads a few of them."""

        def read(start: int) -> list[Any]:
            return [self.engine.read(line, *settings) for line in lines[start : start + _TEXTS_OF_A_TURN]]

        found: list[Any] = []
        while len(found) < len(lines):
            found += await asyncio.to_thread(read, len(found))
        return found

    async def _awaited(self, work: Coroutine[Any, Any, Any], leaving: asyncio.Future, ends_at: float) -> Any:
        """The result of work that ends when nobody waits for it: with RequestError, 499 or 504."""
        working = asyncio.ensure_future(work)
        try:
            left = ends_at - time.monotonic()
            await asyncio.wait([working, leaving], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise RequestError(499, "The client has left.") if leaving.done() else self.too_late()
        finally:
            working.cancel()

    def _submit(self, texts: Sequence[Any]) -> list[Future]:
        try:
            return self.batcher.submit([(text.kind, text) for text in texts])
        except QueueFullError:
            raise RequestError(
                503, f"The queue is full: {len(self.batcher)} texts wait. Try again.", headers={"Retry-After": "1"}
            ) from None


def _finite(reply: Any) -> Any:
    """The reply. Raises RequestError if it is an error."""
    if isinstance(reply, Exception):
        logger.error("%s", reply)
        raise RequestError(500, f"The model gives no finite answer: {reply}")
    return reply


def make_app(service: Service) -> fastapi.FastAPI:
    """The application of a service."""
    app = fastapi.FastAPI(openapi_url=None, redirect_slashes=False)
    app.add_middleware(_Door, service=service)
    _add_refusals(app)
    limits = service.limits

    @app.get("/")
    async def show_page() -> Response:
        return HTMLResponse(
            service.page(),
            headers={"Content-Security-Policy": page.POLICY},
        )

    @app.get("/health")
    async def health() -> Any:
        return {"status": "ok", "model": limits.name}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/v1/models")
    async def models() -> Any:
        return {"object": "list", "data": [_model(limits.name)]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Any:
        request_fields.check_model(name, limits)
        return _model(name)

    @app.post("/v1/completions")
    async def completions(request: fastapi.Request) -> Response:
        asked = request_fields.completion(request_fields.parse(await _body(request)), limits)
        head, settings = _head(limits.name), (asked.max_tokens, asked.temperature, asked.num_candidates)
        if asked.stream:
            streams = await service.stream(request, asked.prompts, *settings)
            events = _events(head, service, streams, asked.counts_tokens)
            return StreamingResponse(events, media_type="text/event-stream")
        found, of_texts = await service.replies(request, asked.prompts, *settings)
        of_answers = sum(reply.num_tokens for reply in found)
        service.metrics.add_tokens(of_texts, of_answers)
        choices = [
            _choice(index, reply.text, reply.finish_reason, reply.hint) | _candidates(reply)
            for index, reply in enumerate(found)
        ]
        return JSONResponse({**head, "choices": choices, "usage": _usage(of_texts, of_answers)})

    @app.post("/v1/embeddings")
    async def embeddings(request: fastapi.Request) -> Response:
        texts, in_base64 = request_fields.embedding(request_fields.parse(await _body(request)), limits)
        found, of_texts = await service.replies(request, texts)
        service.metrics.add_tokens(of_texts, 0)
        data = [
            {"object": "embedding", "index": index, "embedding": _vector(reply.vector, in_base64)} | _hint(reply.hint)
            for index, reply in enumerate(found)
        ]
        usage = {"prompt_tokens": of_texts, "total_tokens": of_texts}
        return JSONResponse({"object": "list", "model": limits.name, "data": data, "usage": usage})

    return app


class _Door:
    """Asks each request for the token, and counts it. The server has no websockets."""

    def __init__(self, app: App, service: Service):
        self._app, self._service = app, service

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Message, receive: Receive, send: Send) -> None:
        begun = time.monotonic()
        # The path by which the request is routed: older versions of Starlette make request.url of the Host header, too.
        path = scope["path"] if scope["path"] in _PATHS else "other"
        status = 500

        async def sending(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            app = self._app if path in _OPEN else self._checked(fastapi.Request(scope))
            await app(scope, receive, sending)
        finally:
            self._service.metrics.add_request(path, status, time.monotonic() - begun)

    def _checked(self, request: fastapi.Request) -> App:
        """The application, or the refusal of a request without the token."""
        if _has_token(request, self._service.token):
            return self._app
        is_wrong = "The token is wrong; send" if "authorization" in request.headers else "Send"
        message = f"{is_wrong} the server's token: Authorization: Bearer TOKEN."
        return _error(RequestError(401, message, None, {"WWW-Authenticate": "Bearer"}))


def _add_refusals(app: fastapi.FastAPI) -> None:
    """What errors look like: OpenAI's objects."""

    @app.exception_handler(RequestError)
    async def refuse(request: fastapi.Request, error: RequestError) -> Response:
        return _error(error)

    @app.exception_handler(HTTPException)
    async def refuse_path(request: fastapi.Request, error: HTTPException) -> Response:
        path = request.scope["path"]
        message = f"{request.method} {path[:100]!r}: {error.detail}. There are {', '.join(_PATHS)}."
        if path.startswith("/v1/chat"):
            message += " These models complete and answer texts; they hold no chats: use /v1/completions."
        return _error(RequestError(error.status_code, message, headers=error.headers))

    @app.exception_handler(Exception)
    async def fail(request: fastapi.Request, error: Exception) -> Response:
        return _error(RequestError(500, f"The server failed ({type(error).__name__}); its log says where."))


def _has_token(request: fastapi.Request, token: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    is_same = hmac.compare_digest(given.strip().encode("latin-1"), token.encode("latin-1"))
    return not token or (scheme.lower() == "bearer" and is_same)


async def _all_of(results: Sequence[Future]) -> list[Any]:
    return [await asyncio.wrap_future(result) for result in results]


@contextlib.asynccontextmanager
async def _leaving(request: fastapi.Request) -> AsyncIterator[asyncio.Future]:
    """A context with a future that is done when the client has left. The request's body must have been read."""

    async def until_left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.ensure_future(until_left())
    try:
        yield leaving
    finally:
        leaving.cancel()


async def _body(request: fastapi.Request) -> bytes:
    """Raises RequestError, 413, for more than `MOST_BYTES`."""
    too_long = RequestError(413, f"The body is too long; at most {MOST_BYTES:,} bytes are taken.")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MOST_BYTES:
        raise too_long
    content = bytearray()
    try:
        async for piece in request.stream():
            content += piece
            if len(content) > MOST_BYTES:
                raise too_long
    except ClientDisconnect:  # Or `limba.addons.serve.web_guard` has cut it.
        raise too_long from None
    return bytes(content)


def _error(error: RequestError) -> Response:
    return JSONResponse(_described(error), error.status, error.headers)


def _described(error: RequestError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": error.message, "type": kind, "param": error.field, "code": error.status}}


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "limba"}


def _head(model: str) -> dict[str, Any]:
    """What all events of an answer have."""
    created = int(time.time())
    return {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": created, "model": model}


def _usage(of_texts: int, of_answers: int) -> dict[str, int]:
    return {"prompt_tokens": of_texts, "completion_tokens": of_answers, "total_tokens": of_texts + of_answers}


def _choice(index: int, text: str, finish_reason: str | None, hint: str = "") -> dict[str, Any]:
    """OpenAI's object."""
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return choice | _hint(hint)


def _hint(hint: str) -> dict[str, str]:
    """A field of ours, where there is one."""
    return {"hint": hint} if hint else {}


def _candidates(reply: Any) -> dict[str, Any]:
    """A field of ours, where it was asked for: a list for each blank."""
    of_blanks = [[{"text": text, "probability": share} for text, share in words] for words in reply.candidates]
    return {"candidates": of_blanks} if of_blanks else {}


def _vector(vector: Any, in_base64: bool) -> list[float] | str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if in_base64 else vector.tolist()


async def _events(head: dict[str, Any], service: Service, streams: Streams, counts: bool) -> AsyncIterator[str]:
    """Server-sent events with the pieces of the answers, the reasons of their ends, and `[DONE]`; or with an error.

    Where the client asked for `counts`, the last one but `[DONE]` has the numbers of tokens, as in OpenAI's API.
    """
    of_texts, of_answers = sum(len(text.ids) for text in streams.texts), 0
    try:
        async for index, piece, reply in streams.pieces():
            if piece:
                yield _event({**head, "choices": [_choice(index, piece, None)]})
            if reply is not None:
                last = _choice(index, "", _finite(reply).finish_reason, reply.hint)
                yield _event({**head, "choices": [last]})
                service.metrics.add_tokens(len(streams.texts[index].ids), reply.num_tokens)
                of_answers += reply.num_tokens
        if counts:
            yield _event({**head, "choices": [], "usage": _usage(of_texts, of_answers)})
        yield "data: [DONE]\n\n"
    except TimeoutError:
        yield _event(_described(service.too_late()))
    except RequestError as error:
        yield _event(_described(error))
    finally:  # Also if the client has gone.
        streams.leave()


def _event(value: dict[str, Any]) -> str:
    return f"data: {json_text.dumps(value)}\n\n"
