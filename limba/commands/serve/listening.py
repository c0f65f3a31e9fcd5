"""Listens, and ends: half a second after SIGTERM or Ctrl-C nothing more is taken, and what was taken is answered."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

_GRACE_S = 0.5
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """A server that says when it listens, and returns after a signal, where uvicorn's raises the signal once more."""

    greeting = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.greeting:
            print(self.greeting, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Requests that were sent before the signal are on their way: uvicorn would reset their connections.
        await asyncio.sleep(_GRACE_S)
        await super().shutdown(sockets)

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


def make_server(app: Any, greeting: str = "") -> Server:
    """A server of an ASGI application, which prints `greeting` as soon as it listens, and logs no requests."""
    server = Server(uvicorn.Config(app, access_log=False, log_level="warning", log_config=None, server_header=False))
    server.greeting = greeting
    return server


def bind(host: str, port: int) -> socket.socket:
    """A socket at which the server will listen. Raises ValueError if it cannot."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port is {port}; it lies between 0 (any that is free) and 65535.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        return bound
    except OSError as error:
        raise ValueError(
            f"No server can listen at --host {host} --port {port} ({error.strerror or error}); give others."
        ) from error
