"""Where `limba serve` listens, and its server."""

import socket

from limba.addons.serve import web_server
from limba.addons.serve.web_guard import App

# Beyond --timeout_s, for the answer that says so.
_ANSWER_S = 5


def make_server(app: App, greeting: str = "", timeout_s: float = 60) -> web_server.Server:
    """A server of an ASGI application, which prints `greeting` as soon as it listens.

    Args:
      timeout_s: for a request, for its answer, and for the end.
    """
    return web_server.Server(app, web_server.Times(timeout_s, timeout_s + _ANSWER_S, timeout_s), greeting)


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
